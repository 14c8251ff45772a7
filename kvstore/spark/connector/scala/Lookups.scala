package kvstore.spark

import org.apache.spark.sql.SparkSessionExtensions
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.optimizer.JoinSelectionHelper
import org.apache.spark.sql.catalyst.planning.ExtractEquiJoinKeys
import org.apache.spark.sql.catalyst.plans.{JoinType, LeftOuter, RightOuter}
import org.apache.spark.sql.catalyst.plans.logical._
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.catalyst.trees.TreePattern.{PLAN_EXPRESSION, PYTHON_UDF}
import org.apache.spark.sql.execution.datasources.{HadoopFsRelation, LogicalRelation}
import org.apache.spark.sql.execution.datasources.v2.{DataSourceV2ScanRelation, FileScan}
import org.apache.spark.sql.internal.SQLConf

/** What the connector adds to a session: `spark.sql.extensions` has this class. */
class Extensions extends (SparkSessionExtensions => Unit) {
  override def apply(extensions: SparkSessionExtensions): Unit = extensions.injectOptimizerRule { session =>
    // Scans are known only to rules that run after Spark's own, which extensions can't inject.
    val rules = session.experimental.extraOptimizations
    if (!rules.contains(Lookups)) session.experimental.extraOptimizations = rules :+ Lookups
    Unchanged
  }
}

private object Unchanged extends Rule[LogicalPlan] {
  override def apply(plan: LogicalPlan): LogicalPlan = plan
}

/** Joins of the key of a table with a few rows read only these keys: the table gets a runtime filter.
  *
  * Spark itself adds one only if the other side has a condition, and never below the row numbers of a MERGE. The filter
  * is what a broadcast of the join has; without a broadcast the other side is evaluated once more, so only sides count
  * that give the same rows again.
  */
object Lookups extends Rule[LogicalPlan] with JoinSelectionHelper with PredicateHelper {

  /** How much larger a table is than the other side, so that evaluating that once more is worth it. */
  private val Ratio = 4

  /** A smaller table is read as fast as the other side. */
  private val TableBytesMin = 1L << 20

  /** An outer join then has one task, which must not read a large table: so few bytes have no more keys than can be
    * looked up.
    */
  private val OuterBytesMax = 2L << 20

  override def apply(plan: LogicalPlan): LogicalPlan = plan match {
    case subquery: Subquery if subquery.correlated => plan
    case _ if !conf.dynamicPartitionPruningEnabled => plan
    case _ =>
      FewRows.in(plan).transformUp {
        case join @ ExtractEquiJoinKeys(kind, leftKeys, rightKeys, _, _, left, right, _) =>
          if (canPruneLeft(kind) && isSource(right)) {
            val source = whole(right, kind)
            filtered(left, leftKeys, source, rightKeys, kind).fold(join)(found =>
              join.copy(left = wholeOfFew(found, kind), right = source))
          } else if (canPruneRight(kind) && isSource(left)) {
            val source = whole(left, kind)
            filtered(right, rightKeys, source, leftKeys, kind).fold(join)(found =>
              join.copy(left = source, right = wholeOfFew(found, kind)))
          } else join
      }
  }

  /** One partition, which needs no shuffle: a side whose rows an outer join keeps is not broadcast. */
  private def whole(plan: LogicalPlan, kind: JoinType): LogicalPlan =
    if (isOuter(kind)) Repartition(1, shuffle = false, plan) else plan

  /** The side that is looked up. Spark would shuffle this one partition if it took it for as large as the table. */
  private def wholeOfFew(plan: LogicalPlan, kind: JoinType): LogicalPlan =
    if (!isOuter(kind)) plan
    else {
      whole(plan.transformUp {
        case relation: DataSourceV2ScanRelation =>
          relation.scan match {
            case scan: StoreScan =>
              // A projection may add columns; a side that is said to be smaller than this could be broadcast.
              val bytes = conf.getConf(SQLConf.MAX_SINGLE_PARTITION_BYTES) / 4
              relation.copy(scan = scan.saidToGive(bytes.max(conf.autoBroadcastJoinThreshold + 1)))
            case _ => relation
          }
      }, kind)
    }

  private def isOuter(kind: JoinType): Boolean = kind == RightOuter || kind == LeftOuter

  private def filtered(
      plan: LogicalPlan, keys: Seq[Expression], source: LogicalPlan, sourceKeys: Seq[Expression],
      kind: JoinType): Option[LogicalPlan] = {
    val places = keys.zipWithIndex.collect { case (key: Attribute, place) => (key, place) }
    var found = Option.empty[LogicalPlan]
    for ((key, place) <- places) {
      found = below(found.getOrElse(plan), key, source, kind, places.length)((column, relation) =>
        Filter(DynamicPruningSubquery(column, source, sourceKeys, Seq(place), onlyInBroadcast = false)(), relation))
        .orElse(found)
    }
    found
  }

  /** Has the relation changed that a column comes from, if it can be looked up by it. */
  private def below(plan: LogicalPlan, key: Attribute, source: LogicalPlan, kind: JoinType, keys: Int)(
      change: (Attribute, LogicalPlan) => LogicalPlan): Option[LogicalPlan] = plan match {
    case project @ Project(list, child) =>
      list.collectFirst {
        case same: Attribute if same.exprId == key.exprId => same
        case renamed @ Alias(column: Attribute, _) if renamed.exprId == key.exprId => column
      }.flatMap(below(child, _, source, kind, keys)(change)).map(found => project.copy(child = found))
    case Filter(condition, child) =>
      // Spark's own filters wait for a broadcast, which an outer join does not make.
      val (waiting, others) = splitConjunctivePredicates(condition).partition {
        case filter: DynamicPruningSubquery => filter.onlyInBroadcast
        case _ => false
      }
      val has = others.exists(_.exists {
        case filter: DynamicPruningSubquery => filter.pruningKey.references.contains(key)
        case other => other.isInstanceOf[DynamicPruning]
      })
      if (has || waiting.nonEmpty && !isOuter(kind)) None
      else {
        below(child, key, source, kind, keys)(change).map(found =>
          others.reduceOption(And(_, _)).fold(found)(Filter(_, found)))
      }
    case relation: DataSourceV2ScanRelation =>
      relation.scan match {
        case scan: StoreScan
            if scan.isLookedUpBy(key.name, keys) && relation.outputSet.contains(key) && isSmall(source, relation, kind) =>
          Some(change(key, relation))
        case _ => None
      }
    case _ => None
  }

  private def isSmall(source: LogicalPlan, table: DataSourceV2ScanRelation, kind: JoinType): Boolean = {
    val bytes = table.stats.sizeInBytes
    val most = if (isOuter(kind)) OuterBytesMax else math.max(conf.autoBroadcastJoinThreshold, TableBytesMin)
    bytes >= TableBytesMin && source.stats.sizeInBytes <= bytes / Ratio && source.stats.sizeInBytes <= most
  }

  /** Whether a plan gives the same rows each time. */
  private def isSource(plan: LogicalPlan): Boolean =
    plan.deterministic && !plan.isStreaming && !plan.containsAnyPattern(PYTHON_UDF, PLAN_EXPRESSION) && !plan.exists {
      case _: Project | _: Filter | _: SubqueryAlias | _: Union | _: Aggregate | _: Join | _: Sort |
          _: RepartitionOperation | _: LocalRelation | _: Range =>
        false
      case relation: LogicalRelation => !relation.relation.isInstanceOf[HadoopFsRelation]
      case relation: DataSourceV2ScanRelation =>
        !relation.scan.isInstanceOf[StoreScan] && !relation.scan.isInstanceOf[FileScan]
      case _ => true
    }
}
