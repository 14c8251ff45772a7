package kvstore.spark

import java.time.Instant
import java.time.temporal.ChronoUnit
import java.util

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.catalyst.analysis.{NoSuchFunctionException, NoSuchTableException, TableAlreadyExistsException}
import org.apache.spark.sql.connector.catalog._
import org.apache.spark.sql.connector.catalog.constraints.PrimaryKey
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.CaseInsensitiveStringMap
import org.json4s._
import org.json4s.JsonDSL._

/** A store as a catalog: `spark.sql.catalog.kv` is this class, `spark.sql.catalog.kv.path` the store's directory. */
class StoreCatalog extends TableCatalog with FunctionCatalog {
  private var catalog = ""
  private var path = ""

  override def initialize(name: String, options: CaseInsensitiveStringMap): Unit = {
    catalog = name
    path = Option(options.get("path")).getOrElse(
      throw new IllegalArgumentException(s"Set spark.sql.catalog.$name.path to the directory of a store."))
  }

  override def name: String = catalog

  override def capabilities: util.Set[TableCatalogCapability] =
    util.EnumSet.of(TableCatalogCapability.SUPPORT_TABLE_CONSTRAINT)

  override def listTables(namespace: Array[String]): Array[Identifier] = {
    if (namespace.nonEmpty) return Array.empty
    (ask("list", "catalog", JObject()) \ "tables").children.collect { case JString(name) =>
      Identifier.of(Array.empty, name)
    }.toArray
  }

  override def listFunctions(namespace: Array[String]): Array[Identifier] =
    if (namespace.nonEmpty) Array.empty else Array(Identifier.of(namespace, BucketFunction.name))

  override def loadFunction(function: Identifier): UnboundFunction =
    if (function.namespace.isEmpty && function.name == BucketFunction.name) BucketFunction
    else throw new NoSuchFunctionException(function)

  /** A table as it is now, so that each query sees what is committed when it is planned. */
  override def loadTable(table: Identifier): Table = load(table, Map.empty)

  override def loadTable(table: Identifier, version: String): Table = load(table, Map("asOf" -> version))

  override def loadTable(table: Identifier, micros: Long): Table =
    load(table, Map("asOf" -> Instant.EPOCH.plus(micros, ChronoUnit.MICROS).toString))

  private def load(table: Identifier, given: Map[String, String]): Table = named(table) {
    val options = (given + ("path" -> path) + ("table" -> nameOf(table))).asJava
    val loaded = Loaded.of(options, None, withProperties = true)
    new CatalogTable(loaded, options, s"$catalog.${table.name}")
  }

  override def loadChangelog(
      table: Identifier, context: ChangelogContext, options: CaseInsensitiveStringMap): Changelog =
    named(table)(StoreChanges.load(path, nameOf(table), s"$catalog.${table.name}", context))

  override def createTable(table: Identifier, info: TableInfo): Table = named(table) {
    if (info.partitions.nonEmpty) {
      throw new UnsupportedOperationException(
        "Tables have no partitions but buckets: TBLPROPERTIES ('bucket.num' = '4', 'bucket.key' = 'column').")
    }
    if (!info.constraints.forall(_.isInstanceOf[PrimaryKey])) {
      throw new UnsupportedOperationException("Tables have no constraint but PRIMARY KEY; leave the others out.")
    }
    val key = info.constraints.collectFirst { case key: PrimaryKey => key.columns.map(_.fieldNames.mkString(".")).toList }
    ask("create", table.name,
      ("table" -> nameOf(table)) ~ ("columns" -> info.schema.json) ~ ("key" -> key) ~
        ("properties" -> info.properties.asScala.toMap))
    loadTable(table)
  }

  override def alterTable(table: Identifier, changes: TableChange*): Table = named(table) {
    ask("alter", table.name, ("table" -> nameOf(table)) ~ ("changes" -> changes.map(changeOf).toList))
    loadTable(table)
  }

  private def changeOf(change: TableChange): JObject = change match {
    case added: TableChange.AddColumn if added.fieldNames.length == 1 && added.position == null =>
      val columns = new StructType().add(added.fieldNames.head, added.dataType, added.isNullable)
      ("change" -> "add") ~ ("columns" -> columns.json)
    case renamed: TableChange.RenameColumn if renamed.fieldNames.length == 1 =>
      ("change" -> "rename") ~ ("column" -> renamed.fieldNames.head) ~ ("to" -> renamed.newName)
    case dropped: TableChange.DeleteColumn if dropped.fieldNames.length == 1 =>
      ("change" -> "drop") ~ ("column" -> dropped.fieldNames.head)
    case set: TableChange.SetProperty => ("change" -> "set") ~ ("property" -> set.property) ~ ("value" -> set.value)
    case unset: TableChange.RemoveProperty => ("change" -> "unset") ~ ("property" -> unset.property)
    case other => ("change" -> other.getClass.getSimpleName) ~ ("given" -> other.toString)
  }

  override def dropTable(table: Identifier): Boolean =
    table.namespace.isEmpty && ask("drop", table.name, "table" -> table.name) \ "dropped" == JBool(true)

  override def renameTable(table: Identifier, to: Identifier): Unit = {
    // Spark takes the catalog's name in `RENAME TO kv.new` for a namespace.
    val name = if (to.namespace.sameElements(Array(catalog))) to.name else nameOf(to)
    named(table)(ask("rename", table.name, ("table" -> nameOf(table)) ~ ("name" -> name)))
  }

  private def ask(what: String, of: String, request: JObject): JValue =
    Helper.plan(
      Python.of(SparkSession.active), ("do" -> "catalog") ~ ("to" -> what) ~ ("path" -> path) ~ request, what, of)

  /** Tables are not in namespaces. */
  private def nameOf(table: Identifier): String =
    if (table.namespace.isEmpty) table.name else throw new NoSuchTableException(table)

  /** Says in Spark's words that there is no table, or one already; Spark goes by that. */
  private def named[T](table: Identifier)(run: => T): T =
    try run
    catch {
      case refused: Refused if refused.refusal.startsWith("kvstore.errors.NoSuchTable:") =>
        throw new NoSuchTableException(table)
      case refused: Refused if refused.refusal.startsWith("kvstore.errors.TableExists:") =>
        throw new TableAlreadyExistsException(table)
    }
}
