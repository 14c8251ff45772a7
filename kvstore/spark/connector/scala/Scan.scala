package kvstore.spark

import java.util.OptionalLong

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.connector.expressions.NamedReference
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation
import org.apache.spark.sql.connector.read._
import org.apache.spark.sql.connector.read.partitioning.{Partitioning, UnknownPartitioning}
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream
import org.apache.spark.sql.sources.Filter
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.vectorized.ColumnarBatch
import org.json4s._
import org.json4s.JsonDSL._
import org.json4s.jackson.JsonMethods.{compact, parse, render}

/** What one query needs of a table. Each query has its own, so that its filters concern no other. */
class StoreScanBuilder(table: StoreTable, isOfStatement: Boolean = false)
    extends ScanBuilder
    with SupportsPushDownRequiredColumns
    with SupportsPushDownFilters
    with SupportsPushDownAggregates
    with SupportsPushDownLimit {
  private var columns = table.schema
  private var filters = Array.empty[Filter]
  private var limit: Option[Int] = None
  private var known: Option[KnownScan] = None

  override def pruneColumns(needed: StructType): Unit = columns = needed

  /** Rows that can't pass are left out where that saves reading them; Spark evaluates all filters again. */
  override def pushFilters(given: Array[Filter]): Array[Filter] = {
    filters = given.filter(Filters.json(_).nonEmpty)
    given
  }

  override def pushedFilters(): Array[Filter] = filters

  /** A limit of each task, which reads no more than that; Spark limits their sum. */
  override def pushLimit(rows: Int): Boolean = {
    limit = Some(rows)
    true
  }

  override def supportCompletePushDown(aggregation: Aggregation): Boolean = aggregates(aggregation).nonEmpty

  private def aggregates(aggregation: Aggregation): Option[Seq[KnownAggregate]] = {
    val found = aggregation.aggregateExpressions.toSeq.map(KnownAggregate.of(_, table.schema))
    Option.when(aggregation.groupByExpressions.isEmpty && filters.isEmpty && found.forall(_.nonEmpty))(found.flatten)
  }

  /** Answers `count(*)`, and the smallest and largest key or offset, without reading a row, if the store knows them. */
  override def pushAggregation(aggregation: Aggregation): Boolean = {
    known = aggregates(aggregation).flatMap(KnownScan.of(table, _))
    known.nonEmpty
  }

  override def build(): Scan = known.getOrElse(new StoreScan(table, columns, filters, limit, isOfStatement))
}

class StoreScan(
    table: StoreTable, columns: StructType, filters: Array[Filter], limit: Option[Int], isOfStatement: Boolean,
    bytesMax: Long = Long.MaxValue)
    extends Scan with Batch with SupportsReportStatistics with SupportsReportPartitioning with SupportsRuntimeFiltering {
  private lazy val python = Python.of(SparkSession.active)
  private lazy val planned = plan(filters, takesRows)

  /** Whether the plan is asked for the rows, too. */
  private var takesRows = false

  /** What is known only while the query runs, such as the keys on the other side of a join: a plan of its own. */
  @volatile private var atRuntime: Option[JValue] = None

  private def plan(by: Array[Filter], takesRows: Boolean = false): JValue =
    table.ask(
      python,
      ("do" -> "plan") ~ ("columns" -> columns.json) ~ ("filters" -> by.flatMap(Filters.json).toList) ~
        ("cores" -> Executors.cores) ~ ("byBucket" -> table.bucketed.nonEmpty) ~ ("takesRows" -> takesRows))

  override def readSchema: StructType = columns

  override def description: String =
    s"${table.name} ${columns.simpleString}" + (if (filters.isEmpty) "" else filters.mkString(" where ", ", ", "")) +
      limit.fold("")(rows => s" limit $rows")

  override def toBatch: Batch = this

  override def columnarSupportMode: Scan.ColumnarSupportMode = Scan.ColumnarSupportMode.SUPPORTED

  override def toMicroBatchStream(checkpoint: String): MicroBatchStream = table.stream(columns, python)

  /** Spark need not shuffle the rows for a join or an aggregate by the bucket key. */
  override def outputPartitioning: Partitioning = table.bucketed.fold[Partitioning](new UnknownPartitioning(0))(_.partitioning)

  override def planInputPartitions(): Array[InputPartition] = table.partitions(python, atRuntime.getOrElse(planned))

  /** The same scan, said to give no more than so many bytes: a runtime filter leaves few rows. */
  def saidToGive(bytes: Long): StoreScan = new StoreScan(table, columns, filters, limit, isOfStatement, bytes)

  /** None for a statement: Spark would first read the whole table for the keys of the rows that it changes. */
  override def filterAttributes(): Array[NamedReference] = if (isOfStatement) Array.empty else keyColumns

  private def keyColumns: Array[NamedReference] =
    table.key.filter(column => columns.fieldNames.contains(column.fieldNames.head))

  /** Whether rows can be looked up by a column, and others of a join that has so many. */
  def isLookedUpBy(column: String, columns: Int): Boolean =
    keyColumns.length <= columns && table.key.length == keyColumns.length && keyColumns.exists(_.fieldNames.head == column)

  override def filter(found: Array[Filter]): Unit = {
    // In tasks that were planned before, no filter leaves out a row that another query on this scan needs.
    atRuntime = Some(plan(filters ++ found))
  }

  override def createReaderFactory(): PartitionReaderFactory = {
    val filter = if (filters.isEmpty) JNothing else planned \ "filter"
    val request = ("do" -> "read") ~ ("columns" -> columns.json) ~ ("filter" -> filter) ~ ("limit" -> limit)
    new StoreReaderFactory(python, compact(render(request)))
  }

  /** The rows that can pass the filters, if these name so few that the plan has them. */
  def fewRows: Option[Seq[InternalRow]] = {
    takesRows = !isOfStatement && filters.nonEmpty
    (if (takesRows) planned \ "rows" else JNothing) match {
      case JString(rows) => Some(FewRows.of(columns, rows))
      case _ => None
    }
  }

  /** At most as many rows, so that Spark knows a table that is small enough for each executor. */
  override def estimateStatistics(): Statistics = new Statistics {
    override def numRows: OptionalLong = table.rows.fold(OptionalLong.empty)(OptionalLong.of(_))

    override def sizeInBytes: OptionalLong =
      table.rows.fold(OptionalLong.empty)(rows =>
        OptionalLong.of(bytesMax.min(table.bytes.max(rows.max(1) * columns.defaultSize.max(1)))))
  }
}

/** A task, in words of Python's own. */
class StorePartition(val task: String) extends InputPartition

/** Reads tasks; `request` is all that they have in common. */
class StoreReaderFactory(python: Python, request: String) extends PartitionReaderFactory {
  override def supportColumnarReads(partition: InputPartition): Boolean = true

  override def createReader(partition: InputPartition): PartitionReader[InternalRow] =
    throw new UnsupportedOperationException("Data come as columns.")

  override def createColumnarReader(partition: InputPartition): PartitionReader[ColumnarBatch] = {
    val JObject(fields) = parse(request): @unchecked
    new ColumnReader(python, JObject(fields :+ ("task" -> JString(partition.asInstanceOf[StorePartition].task))))
  }
}
