package kvstore.spark

import java.util

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.connector.read._
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.vectorized.ColumnarBatch
import org.json4s._
import org.json4s.JsonDSL._

/** Collects what a query needs of a table; each query has its own. */
class StoreScanBuilder(
    columns: StructType, options: util.Map[String, String], pinned: () => JValue, python: ScanBuilder)
    extends ScanBuilder with SupportsPushDownRequiredColumns {
  private var required = columns

  override def pruneColumns(needed: StructType): Unit = required = needed

  override def build(): Scan = new StoreScan(required, options, pinned, python)
}

class StoreScan(columns: StructType, options: util.Map[String, String], pinned: () => JValue, python: ScanBuilder)
    extends Scan with Batch {
  override def readSchema: StructType = columns

  override def description: String = s"kvstore ${options.get("table")} ${columns.simpleString}"

  override def toBatch: Batch = this

  override def toMicroBatchStream(checkpoint: String): MicroBatchStream = python.build().toMicroBatchStream(checkpoint)

  private lazy val interpreter = Python.of(SparkSession.active)

  override def planInputPartitions(): Array[InputPartition] = {
    val request = ("do" -> "plan") ~ ("options" -> options.asScala.toMap) ~ ("pinned" -> pinned()) ~
      ("columns" -> columns.json)
    val JArray(tasks) = Helper.plan(interpreter, request) \ "tasks": @unchecked
    tasks.collect { case JString(task) => StorePartition(task) }.toArray
  }

  override def createReaderFactory(): PartitionReaderFactory = new StoreReaderFactory(interpreter, columns)
}

/** A task of the Python source, as JSON. */
case class StorePartition(task: String) extends InputPartition

class StoreReaderFactory(python: Python, columns: StructType) extends PartitionReaderFactory {
  override def supportColumnarReads(partition: InputPartition): Boolean = true

  override def createReader(partition: InputPartition): PartitionReader[InternalRow] =
    throw new UnsupportedOperationException("Data come as columns.")

  override def createColumnarReader(partition: InputPartition): PartitionReader[ColumnarBatch] =
    new ColumnReader(python, partition.asInstanceOf[StorePartition].task, columns)
}
