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
import org.apache.spark.sql.connector.write.{LogicalWriteInfo, SupportsTruncate, Write, WriteBuilder}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.CaseInsensitiveStringMap
import org.json4s._
import org.json4s.JsonDSL._

/** A store as a catalog: `spark.sql.catalog.kv` is this class, `spark.sql.catalog.kv.path` the store's directory.
  *
  * It stages tables, because Spark drops a table before it replaces it in a catalog that does not.
  */
class StoreCatalog extends StagingTableCatalog with FunctionCatalog {
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
    if (namespace.nonEmpty) Array.empty else names().map(Identifier.of(Array.empty, _)).toArray
  }

  private def names(): List[String] =
    (ask("list", "catalog", JObject()) \ "tables").children.collect { case JString(name) => name }

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

  private def load(table: Identifier, given: Map[String, String]): Table =
    named(table)(loaded(_, given)(new CatalogTable(_, _, _)))

  private def loaded[T](name: String, given: Map[String, String])(
      as: (Loaded, util.Map[String, String], String) => T): T = {
    val options = (given + ("path" -> path) + ("table" -> name)).asJava
    as(Loaded.of(options, None, withProperties = true), options, s"$catalog.$name")
  }

  override def loadChangelog(
      table: Identifier, context: ChangelogContext, options: CaseInsensitiveStringMap): Changelog =
    named(table)(name => StoreChanges.load(path, name, s"$catalog.$name", context))

  override def createTable(table: Identifier, info: TableInfo): Table = created(table, info)(new CatalogTable(_, _, _))

  /** A table for CREATE TABLE AS SELECT: it is there at once, and goes if its rows can't be written. */
  override def stageCreate(table: Identifier, info: TableInfo): StagedTable =
    created(table, info)(new CreatedTable(_, _, _, () => dropTable(table)))

  override def stageReplace(table: Identifier, info: TableInfo): StagedTable =
    throw new Refused(
      "kvstore.errors.UnsupportedOperation: A table can't be replaced, because its rows and changes would be lost before " +
        "the new rows are there; nothing was changed. To replace the rows, use INSERT OVERWRITE (of a DataFrame " +
        s"""`writeTo("$catalog.${table.name}").overwrite(lit(True))`); for other columns use ALTER TABLE, or DROP """ +
        s"TABLE and then CREATE TABLE. table=${table.name}", "replace", table.name)

  override def stageCreateOrReplace(table: Identifier, info: TableInfo): StagedTable =
    if (tableExists(table)) stageReplace(table, info) else stageCreate(table, info)

  private def created[T](table: Identifier, info: TableInfo)(
      as: (Loaded, util.Map[String, String], String) => T): T = named(table) { name =>
    if (info.partitions.nonEmpty) {
      throw new UnsupportedOperationException(
        "Tables have no partitions but buckets: TBLPROPERTIES ('bucket.num' = '4', 'bucket.key' = 'column').")
    }
    if (!info.constraints.forall(_.isInstanceOf[PrimaryKey])) {
      throw new UnsupportedOperationException("Tables have no constraint but PRIMARY KEY; leave the others out.")
    }
    val key = info.constraints.collectFirst { case key: PrimaryKey => key.columns.map(_.fieldNames.mkString(".")).toList }
    ask("create", name,
      ("table" -> name) ~ ("columns" -> info.schema.json) ~ ("key" -> key) ~
        ("properties" -> info.properties.asScala.toMap) ~ ("caseSensitive" -> SQLConf.get.caseSensitiveAnalysis))
    loaded(name, Map.empty)(as)
  }

  override def alterTable(table: Identifier, changes: TableChange*): Table = {
    named(table)(name => ask("alter", name, ("table" -> name) ~ ("changes" -> changes.map(changeOf).toList)))
    loadTable(table)
  }

  private def changeOf(change: TableChange): JObject = change match {
    case added: TableChange.AddColumn if added.fieldNames.length == 1 =>
      val columns = new StructType().add(added.fieldNames.head, added.dataType, added.isNullable)
      ("change" -> "add") ~ ("column" -> added.fieldNames.head) ~ ("columns" -> columns.json) ~
        ("place" -> Option(added.position).map(_.toString)) ~ ("default" -> Option(added.defaultValue).map(_.getSql))
    case renamed: TableChange.RenameColumn if renamed.fieldNames.length == 1 =>
      ("change" -> "rename") ~ ("column" -> renamed.fieldNames.head) ~ ("to" -> renamed.newName)
    case dropped: TableChange.DeleteColumn if dropped.fieldNames.length == 1 =>
      ("change" -> "drop") ~ ("column" -> dropped.fieldNames.head)
    case set: TableChange.SetProperty => ("change" -> "set") ~ ("property" -> set.property) ~ ("value" -> set.value)
    case unset: TableChange.RemoveProperty => ("change" -> "unset") ~ ("property" -> unset.property)
    case other: TableChange.ColumnChange =>
      ("change" -> other.getClass.getSimpleName) ~ ("column" -> other.fieldNames.mkString("."))
    case other => "change" -> other.getClass.getSimpleName
  }

  override def dropTable(table: Identifier): Boolean =
    try {
      named(table)(name => ask("drop", name, "table" -> name))
      true
    } catch { case _: NoSuchTableException => false }

  override def renameTable(table: Identifier, to: Identifier): Unit = {
    // Spark takes the catalog's name in `RENAME TO kv.new` for a namespace.
    val newName = if (to.namespace.sameElements(Array(catalog))) to.name else nameOf(to)
    named(table) { name =>
      if (!newName.equalsIgnoreCase(name) && inOtherCase(newName).nonEmpty) throw new TableAlreadyExistsException(to)
      ask("rename", name, ("table" -> name) ~ ("name" -> newName))
    }
  }

  private def ask(what: String, of: String, request: JObject): JValue =
    Helper.plan(
      Python.of(SparkSession.active), ("do" -> "catalog") ~ ("to" -> what) ~ ("path" -> path) ~ request, what, of)

  /** Tables are not in namespaces. */
  private def nameOf(table: Identifier): String =
    if (table.namespace.isEmpty) table.name else throw new NoSuchTableException(table)

  /** Runs with the name of a table as it is written. If there is none of that name, and case does not matter to Spark,
    * runs with the one name that differs only by case. Says in Spark's words that there is no table, or one already;
    * Spark goes by that.
    */
  private def named[T](table: Identifier)(run: String => T): T =
    try run(nameOf(table))
    catch {
      case refused: Refused if refused.isA("NoSuchTable") =>
        inOtherCase(table.name).fold[T](throw new NoSuchTableException(table))(run)
      case refused: Refused if refused.isA("TableExists") => throw new TableAlreadyExistsException(table)
    }

  private def inOtherCase(name: String): Option[String] = {
    val (own, view) = name.span(_ != '$')
    val others =
      if (SQLConf.get.caseSensitiveAnalysis) Nil
      else
        try names().filter(each => each.equalsIgnoreCase(own) && each != own)
        catch { case _: Refused => Nil } // a replica lists none
    if (others.length > 1) {
      throw new Refused(
        "kvstore.errors.NoSuchTable: No table has this name, and several differ from it only by case; write one of " +
          s"these. table=$own tables=${others.mkString("[", ", ", "]")}", "find", name)
    }
    others.headOption.map(_ + view)
  }
}

/** A table that was created for the rows of a query. */
class CreatedTable(loaded: Loaded, options: util.Map[String, String], name: String, drop: () => Unit)
    extends CatalogTable(loaded, options, name) with StagedTable {
  override def commitStagedChanges(): Unit = ()

  override def abortStagedChanges(): Unit = drop()

  /** CREATE OR REPLACE writes like INSERT OVERWRITE, which some tables refuse; a new table has no rows to replace. */
  override def newWriteBuilder(info: LogicalWriteInfo): WriteBuilder = {
    val insert = super.newWriteBuilder(info)
    new WriteBuilder with SupportsTruncate {
      override def truncate(): WriteBuilder = this

      override def build(): Write = insert.build()
    }
  }
}
