package kvstore.spark

import java.io.ByteArrayInputStream
import java.nio.channels.Channels
import java.util.Base64

import scala.collection.mutable.ArrayBuffer
import scala.jdk.CollectionConverters._

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.expressions.BindReferences.bindReference
import org.apache.spark.sql.catalyst.plans.logical.{Aggregate, Filter, LocalRelation, LogicalPlan, Project, Repartition}
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation
import org.apache.spark.sql.execution.dynamicpruning.CleanupDynamicPruningFilters
import org.apache.spark.sql.types.StructType

/** Rows that a query names by a few keys come with its plan: it then needs no task, or one that reads no table. */
object FewRows {
  private val Few = 1000

  def of(columns: StructType, encoded: String): Seq[InternalRow] = {
    val copy = UnsafeProjection.create(columns)
    val rows = ArrayBuffer.empty[InternalRow]
    val stream = new ColumnStream(Channels.newChannel(new ByteArrayInputStream(Base64.getDecoder.decode(encoded))))
    try while (stream.next()) stream.batch.rowIterator.asScala.foreach(row => rows += copy(row).copy())
    finally stream.close()
    rows.toSeq
  }

  /** Has the rows in place of the scans that found them, and filters on them and choices of columns evaluated. */
  def in(plan: LogicalPlan): LogicalPlan = {
    // In the subqueries that wait for a broadcast, too: they have to be like the side that is broadcast.
    val found = plan.transformUpWithSubqueries {
      case relation: DataSourceV2ScanRelation =>
        relation.scan match {
          case scan: StoreScan => scan.fewRows.fold[LogicalPlan](relation)(LocalRelation(relation.output, _))
          case _ => relation
        }
    }
    if (found eq plan) plan else CleanupDynamicPruningFilters(found).transformUpWithSubqueries(evaluated)
  }

  /** What is left for tasks may fail, take long or never be needed; an aggregate of one partition needs no shuffle. */
  private val evaluated: PartialFunction[LogicalPlan, LogicalPlan] = {
    case Filter(condition, rows: LocalRelation) if !condition.exists(!isPlain(_)) =>
      rows.copy(data = rows.data.filter(Predicate.createInterpreted(bindReference(condition, rows.output)).eval))
    case Project(columns, rows: LocalRelation) if columns.forall(_.isInstanceOf[Attribute]) =>
      val project = UnsafeProjection.create(columns, rows.output)
      rows.copy(output = columns.map(_.toAttribute), data = rows.data.map(project(_).copy()))
    case aggregate: Aggregate if isOfRows(aggregate.child) =>
      aggregate.copy(child = Repartition(1, shuffle = false, aggregate.child))
  }

  private def isOfRows(plan: LogicalPlan): Boolean = plan match {
    case Filter(_, child) => isOfRows(child)
    case Project(_, child) => isOfRows(child)
    case rows: LocalRelation => rows.data.length <= Few
    case _ => false
  }

  private def isPlain(part: Expression): Boolean = part match {
    case _: Attribute | _: Literal | _: And | _: Or | _: Not | _: IsNull | _: IsNotNull => true
    case _: BinaryComparison | _: In | _: InSet | _: StringPredicate => true
    case _ => false
  }
}
