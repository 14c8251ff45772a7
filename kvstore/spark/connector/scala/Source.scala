package kvstore.spark

import java.util

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.connector.catalog.{SupportsRead, SupportsWrite, Table, TableCapability, TableProvider}
import org.apache.spark.sql.connector.expressions.Transform
import org.apache.spark.sql.connector.read.ScanBuilder
import org.apache.spark.sql.connector.write.{LogicalWriteInfo, WriteBuilder}
import org.apache.spark.sql.execution.datasources.v2.python.{PythonDataSourceV2, PythonTable}
import org.apache.spark.sql.sources.DataSourceRegister
import org.apache.spark.sql.types.{DataType, StructType}
import org.apache.spark.sql.util.CaseInsensitiveStringMap
import org.json4s._
import org.json4s.JsonDSL._

/** `format("kvstore")` where this jar is loaded. */
class Source extends TableProvider with DataSourceRegister {
  private var loaded: Option[Loaded] = None

  override def shortName: String = "kvstore"

  override def supportsExternalMetadata: Boolean = true

  override def inferSchema(options: CaseInsensitiveStringMap): StructType = {
    loaded = Some(Loaded.of(options.asCaseSensitiveMap, None))
    loaded.get.columns
  }

  override def getTable(
      schema: StructType, partitioning: Array[Transform], options: util.Map[String, String]): Table =
    new StoreTable(schema, options, loaded)
}

/** What is read: the columns to choose from, and the offsets, both as of the moment it was loaded. */
class Loaded(val columns: StructType, val pinned: JValue) // pinned is of Python's own

object Loaded {
  def of(options: util.Map[String, String], given: Option[StructType]): Loaded = {
    val request = ("do" -> "load") ~ ("options" -> options.asScala.toMap) ~ ("columns" -> given.map(_.json))
    val answer = Helper.plan(Python.of(SparkSession.active), request)
    answer \ "columns" match {
      case JString(columns) => new Loaded(DataType.fromJson(columns).asInstanceOf[StructType], answer \ "pinned")
      case other => throw new IllegalStateException(s"No columns: $other")
    }
  }
}

/** A table of a store, its changelog or its binlog. What is not here yet goes through the Python source. */
class StoreTable(columns: StructType, options: util.Map[String, String], first: Option[Loaded])
    extends Table with SupportsRead with SupportsWrite {

  /** A schema that the user gave is checked, and offsets are pinned, by the first query. */
  private lazy val loaded = first.getOrElse(Loaded.of(options, Some(columns)))

  private lazy val python = {
    val source = new PythonDataSourceV2
    source.setShortName("kvstore")
    new PythonTable(source, "kvstore", columns)
  }

  override def name: String = s"kvstore ${options.get("table")}"

  override def schema: StructType = columns

  override def capabilities: util.Set[TableCapability] = python.capabilities

  override def newScanBuilder(given: CaseInsensitiveStringMap): ScanBuilder =
    new StoreScanBuilder(columns, options, () => loaded.pinned, python.newScanBuilder(given))

  override def newWriteBuilder(info: LogicalWriteInfo): WriteBuilder = python.newWriteBuilder(info)
}
