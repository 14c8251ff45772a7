package kvstore.spark

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.connector.expressions.NamedReference
import org.apache.spark.sql.connector.expressions.aggregate.{AggregateFunc, CountStar, Max, Min}
import org.apache.spark.sql.connector.read.LocalScan
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String
import org.json4s._
import org.json4s.JsonDSL._

/** An aggregate that a store may know. */
case class KnownAggregate(name: String, column: Option[String], kind: DataType) {
  def json: JObject = ("name" -> name) ~ ("column" -> column)

  def value(given: JValue): Any = (kind, given) match {
    case (_, JNull) => null
    case (ByteType, JInt(number)) => number.toByte
    case (ShortType, JInt(number)) => number.toShort
    case (IntegerType | DateType, JInt(number)) => number.toInt
    case (LongType, JInt(number)) => number.toLong
    case (_, JString(text)) => UTF8String.fromString(text)
    case other => throw new IllegalStateException(s"No value: $other")
  }
}

object KnownAggregate {
  def of(given: AggregateFunc, columns: StructType): Option[KnownAggregate] = given match {
    case _: CountStar => Some(KnownAggregate("count", None, LongType))
    case min: Min => of("min", min.column, columns)
    case max: Max => of("max", max.column, columns)
    case _ => None
  }

  private def of(name: String, given: Any, columns: StructType): Option[KnownAggregate] = given match {
    case reference: NamedReference if reference.fieldNames.length == 1 =>
      val column = reference.fieldNames.head
      columns.find(_.name == column).map(field => KnownAggregate(name, Some(column), field.dataType))
    case _ => None
  }
}

/** Aggregates that are known when the query is planned. */
class KnownScan(table: String, of: Seq[KnownAggregate], values: Seq[JValue]) extends LocalScan {
  override def readSchema: StructType =
    StructType(of.zipWithIndex.map { case (each, place) => StructField(s"${each.name}_$place", each.kind) })

  override def rows(): Array[InternalRow] =
    Array(InternalRow(of.zip(values).map { case (each, value) => each.value(value) }: _*))

  override def description: String =
    of.map(each => each.name + each.column.fold("")(name => s"($name)")).mkString(s"$table ", ", ", "")
}

object KnownScan {
  def of(table: StoreTable, wanted: Seq[KnownAggregate]): Option[KnownScan] =
    table.ask(Python.of(SparkSession.active), ("do" -> "aggregate") ~ ("of" -> wanted.map(_.json))) \ "values" match {
      case JArray(values) => Some(new KnownScan(table.name, wanted, values))
      case _ => None
    }
}
