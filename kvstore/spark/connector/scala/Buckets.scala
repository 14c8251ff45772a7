package kvstore.spark

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.connector.catalog.functions.{BoundFunction, UnboundFunction}
import org.apache.spark.sql.connector.expressions.Expressions
import org.apache.spark.sql.connector.read.HasPartitionKey
import org.apache.spark.sql.connector.read.partitioning.{KeyGroupedPartitioning, Partitioning}
import org.apache.spark.sql.types.{DataType, IntegerType, StructType}
import org.json4s._

/** Buckets of a table whose key is one column. */
case class Bucketed(buckets: Int, column: String) {
  def partitioning: Partitioning =
    new KeyGroupedPartitioning(Array(Expressions.bucket(buckets, s"`${column.replace("`", "``")}`")), buckets)
}

object Bucketed {
  def of(given: JValue): Option[Bucketed] = (given \ "buckets", given \ "column") match {
    case (JInt(buckets), JString(column)) => Some(Bucketed(buckets.toInt, column))
    case _ => None
  }
}

/** A task of one bucket. */
class BucketPartition(task: String, bucket: Int) extends StorePartition(task) with HasPartitionKey {
  override def partitionKey(): InternalRow = InternalRow(bucket)
}

/** The function from a key to its bucket. It has a name, by which Spark sees that two tables have the same one; only
  * the store computes it.
  */
object BucketFunction extends UnboundFunction {
  override def name: String = "bucket"

  override def description: String = "bucket(number, key): the bucket of a key; only for the plans of joins"

  override def bind(given: StructType): BoundFunction = new BoundBucket(given.map(_.dataType).toArray)
}

class BoundBucket(types: Array[DataType]) extends BoundFunction {
  override def name: String = "bucket"

  override def inputTypes: Array[DataType] = types

  override def resultType: DataType = IntegerType

  override def canonicalName: String = types.map(_.catalogString).mkString("kvstore.bucket(", ", ", ")")
}
