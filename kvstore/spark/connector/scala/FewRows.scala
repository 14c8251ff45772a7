package kvstore.spark

import java.io.ByteArrayInputStream
import java.nio.channels.Channels
import java.util.Base64

import scala.collection.mutable.ArrayBuffer
import scala.jdk.CollectionConverters._

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection
import org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation
import org.apache.spark.sql.catalyst.plans.logical.{Aggregate, LocalRelation, LogicalPlan, Repartition}
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation
import org.apache.spark.sql.execution.dynamicpruning.CleanupDynamicPruningFilters
import org.apache.spark.sql.types.StructType

/** Rows that a query names by a few keys come with its plan: it then needs no task, or one that reads no table. */
object FewRows {
  def of(columns: StructType, encoded: String): Seq[InternalRow] = {
    val copy = UnsafeProjection.create(columns)
    val rows = ArrayBuffer.empty[InternalRow]
    val stream = new ColumnStream(Channels.newChannel(new ByteArrayInputStream(Base64.getDecoder.decode(encoded))))
    try while (stream.next()) stream.batch.rowIterator.asScala.foreach(row => rows += copy(row).copy())
    finally stream.close()
    rows.toSeq
  }

  /** Has the rows in place of the scans that found them, and filters and projections of them evaluated. */
  def in(plan: LogicalPlan): LogicalPlan = {
    val found = plan.transformUp {
      case relation: DataSourceV2ScanRelation =>
        relation.scan match {
          case scan: StoreScan => scan.fewRows.fold[LogicalPlan](relation)(LocalRelation(relation.output, _))
          case _ => relation
        }
    }
    if (found eq plan) plan else inOnePartition(evaluated(CleanupDynamicPruningFilters(found)))
  }

  @scala.annotation.tailrec
  private def evaluated(plan: LogicalPlan): LogicalPlan = {
    val next = ConvertToLocalRelation(plan)
    if (next eq plan) plan else evaluated(next)
  }

  /** An aggregate of one partition needs no shuffle. */
  private def inOnePartition(plan: LogicalPlan): LogicalPlan = plan.transformUp {
    case aggregate @ Aggregate(_, _, rows: LocalRelation, _) =>
      aggregate.copy(child = Repartition(1, shuffle = false, rows))
  }
}
