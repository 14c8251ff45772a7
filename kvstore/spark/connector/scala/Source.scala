package kvstore.spark

import java.util

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.connector.catalog.{SupportsRead, SupportsWrite, Table, TableCapability, TableProvider}
import org.apache.spark.sql.connector.expressions.{NamedReference, Transform}
import org.apache.spark.sql.connector.read.{InputPartition, ScanBuilder}
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream
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
    new StoreTable(schema, options, loaded, s"kvstore ${options.get("table")}")
}

object Json {
  def of(options: util.Map[String, String]): JObject =
    JObject(options.asScala.toList.map { case (name, value) => name -> JString(value) })
}

/** What is read: the columns to choose from, the offsets in words of Python's own, and about how many rows and bytes there are. */
class Loaded(
    val columns: StructType, val pinned: JValue, val key: Array[NamedReference], val rows: Option[Long], val bytes: Long,
    val properties: Map[String, String], val bucketed: Option[Bucketed])

object Loaded {
  def of(options: util.Map[String, String], given: Option[StructType], withProperties: Boolean = false): Loaded = {
    val request = ("do" -> "load") ~ ("options" -> options.asScala.toMap) ~ ("columns" -> given.map(_.json)) ~
      ("properties" -> Option.when(withProperties)(true))
    read(Helper.plan(Python.of(SparkSession.active), request))
  }

  def read(answer: JValue): Loaded = {
    val rows = Option(answer \ "rows").collect { case JInt(rows) => rows.toLong }
    val bytes = Option(answer \ "bytes").collect { case JInt(bytes) => bytes.toLong }.getOrElse(0L)
    answer \ "columns" match {
      case JString(columns) =>
        val properties = answer \ "properties" match {
          case JObject(fields) => fields.collect { case (name, JString(value)) => name -> value }.toMap
          case _ => Map.empty[String, String]
        }
        new Loaded(DataType.fromJson(columns).asInstanceOf[StructType], answer \ "pinned", Key.of(answer \ "lookup"), rows, bytes,
          properties, Bucketed.of(answer \ "bucketed"))
      case other => throw new IllegalStateException(s"No columns: $other")
    }
  }
}

/** A table of a store, its changelog or its binlog. Writes go through the Python source. */
class StoreTable(
    columns: StructType, options: util.Map[String, String], first: Option[Loaded], override val name: String)
    extends Table with SupportsRead with SupportsWrite {

  /** A schema that the user gave is checked, and offsets are pinned, by the first query. */
  private lazy val loaded = first.getOrElse(Loaded.of(options, Some(columns)))

  private lazy val python = {
    val source = new PythonDataSourceV2
    source.setShortName("kvstore")
    new PythonTable(source, "kvstore", columns)
  }

  override def schema: StructType = columns

  override def properties: util.Map[String, String] = first.fold(Map.empty[String, String])(_.properties).asJava

  override def capabilities: util.Set[TableCapability] = python.capabilities

  override def newScanBuilder(given: CaseInsensitiveStringMap): ScanBuilder = {
    val all = withOwn(given)
    val table =
      if (all == new CaseInsensitiveStringMap(options)) this
      else new StoreTable(columns, all.asCaseSensitiveMap, None, name) // options of one query on a table of a catalog
    if (!all.containsKey("asOf")) NewTable.reads(table.pinned)
    new StoreScanBuilder(table)
  }

  private def pinned: JValue = loaded.pinned

  override def newWriteBuilder(info: LogicalWriteInfo): WriteBuilder =
    python.newWriteBuilder(new LogicalWriteInfo {
      override def options: CaseInsensitiveStringMap = withOwn(info.options)

      override def queryId: String = info.queryId

      override def schema: StructType = info.schema
    })

  protected def withOwn(given: CaseInsensitiveStringMap): CaseInsensitiveStringMap = {
    val all = new util.HashMap[String, String](options)
    given.asCaseSensitiveMap.forEach { (name, value) =>
      all.keySet.removeIf(_.equalsIgnoreCase(name))
      all.put(name, value)
    }
    new CaseInsensitiveStringMap(all)
  }

  /** Asks about what was loaded. */
  def ask(python: Python, request: JObject): JValue =
    Helper.plan(python, request ~ ("options" -> optionsAsJson) ~ ("pinned" -> pinned))

  /** The tasks of a plan, which every executor can read. */
  def partitions(python: Python, planned: JValue): Array[InputPartition] = {
    val buckets = (planned \ "buckets").children.collect { case JInt(bucket) => bucket.toInt }
    val found = (planned \ "tasks").children.collect { case JString(task) => task }
    val tasks: Array[InputPartition] =
      if (buckets.isEmpty) found.map(new StorePartition(_)).toArray
      else found.zip(buckets).map { case (task, bucket) => new BucketPartition(task, bucket) }.toArray
    Executors.check(python, new CaseInsensitiveStringMap(options).get("path"), tasks)
    tasks
  }

  def optionsAsJson: JObject = Json.of(options)

  def stream(columns: StructType, python: Python): MicroBatchStream = new StoreStream(this, columns, python)

  /** Buckets that are worth tasks of their own. */
  def bucketed: Option[Bucketed] = loaded.bucketed

  /** Columns by which rows can be looked up, if values of all of them are given. */
  def key: Array[NamedReference] = loaded.key

  /** About how many rows there are. */
  def rows: Option[Long] = loaded.rows

  /** About how many bytes are stored of them, of all columns. */
  def bytes: Long = loaded.bytes
}
