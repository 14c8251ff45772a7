package kvstore.spark

import java.time.Instant
import java.time.temporal.ChronoUnit
import java.util

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.catalyst.analysis._
import org.apache.spark.sql.connector.catalog._
import org.apache.spark.sql.connector.catalog.constraints.PrimaryKey
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.{DataType, StructType}
import org.apache.spark.sql.util.CaseInsensitiveStringMap
import org.json4s._
import org.json4s.JsonDSL._

/** A store as a catalog: `spark.sql.catalog.kv` is this class, `spark.sql.catalog.kv.path` the store's directory.
  *
  * It stages tables: one that is created with its rows, or replaced, is there with all of them or not at all.
  */
class StoreCatalog extends StagingTableCatalog with FunctionCatalog with SupportsNamespaces {
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

  override def defaultNamespace: Array[String] = StoreCatalog.Default

  override def listNamespaces(): Array[Array[String]] = Array(StoreCatalog.Default)

  override def listNamespaces(in: Array[String]): Array[Array[String]] =
    if (in.isEmpty) listNamespaces() else { check(in); Array.empty }

  override def namespaceExists(namespace: Array[String]): Boolean =
    namespace.isEmpty || namespace.sameElements(StoreCatalog.Default)

  override def loadNamespaceMetadata(namespace: Array[String]): util.Map[String, String] = {
    check(namespace)
    util.Map.of()
  }

  override def createNamespace(namespace: Array[String], metadata: util.Map[String, String]): Unit =
    if (namespaceExists(namespace)) throw new NamespaceAlreadyExistsException(namespace) else refuse(namespace)

  override def alterNamespace(namespace: Array[String], changes: NamespaceChange*): Unit = refuse(namespace)

  override def dropNamespace(namespace: Array[String], cascade: Boolean): Boolean = {
    check(namespace)
    refuse(namespace)
  }

  private def check(namespace: Array[String]): Unit =
    if (!namespaceExists(namespace)) throw new NoSuchNamespaceException(namespace)

  private def refuse(namespace: Array[String]): Nothing =
    throw new Refused(
      "kvstore.errors.UnsupportedOperation: A store has one namespace, `default`, which stays as it is; make another " +
        s"store for other tables. namespace=${namespace.mkString(".")}", "change", catalog)

  override def listTables(namespace: Array[String]): Array[Identifier] =
    if (namespaceExists(namespace)) names().map(Identifier.of(namespace, _)).toArray else Array.empty

  private def names(): List[String] =
    (ask("list", "catalog", JObject()) \ "tables").children.collect { case JString(name) => name }

  override def listFunctions(namespace: Array[String]): Array[Identifier] =
    if (namespace.nonEmpty) Array.empty else Array(Identifier.of(namespace, BucketFunction.name))

  override def loadFunction(function: Identifier): UnboundFunction =
    if (function.namespace.isEmpty && function.name == BucketFunction.name) BucketFunction
    else throw new NoSuchFunctionException(function)

  /** A table as it is now, so that each query sees what is committed when it is planned. */
  override def loadTable(table: Identifier): Table = load(table, Map.empty)

  /** Also of a table with columns that Spark can't have, so that it can be dropped. */
  override def tableExists(table: Identifier): Boolean =
    (namespaceExists(table.namespace) && (isListed(table.name) || inOtherCase(table.name).nonEmpty)) || super.tableExists(table)

  private def isListed(name: String): Boolean =
    try names().contains(name)
    catch { case _: Refused => false } // a replica lists none

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

  override def createTable(table: Identifier, info: TableInfo): Table = created(table) { name =>
    ask("create", name, defined(name, info, info.properties.asScala.toMap))
    loaded(name, Map.empty)(new CatalogTable(_, _, _))
  }

  /** A table with the columns of another; one of a store also has its key and properties. */
  override def createTableLike(table: Identifier, info: TableInfo, source: Table): Table = source match {
    case like: CatalogTable =>
      val others = info.properties.asScala.filterNot { case (property, value) =>
        property == TableCatalog.PROP_OWNER || like.properties.get(property) == value
      }
      if (others.nonEmpty) {
        throw new Refused(
          "kvstore.errors.UnsupportedOperation: CREATE TABLE LIKE takes the key and the properties of the other table; " +
            s"leave TBLPROPERTIES and USING out. given=${others.keys.toSeq.sorted.mkString(", ")}", "create", table.name)
      }
      created(table) { name =>
        ask("like", name, ("table" -> name) ~ ("like" -> like.optionsAsJson), "create")
        loaded(name, Map.empty)(new CatalogTable(_, _, _))
      }
    case _ => createTable(table, info)
  }

  override def stageCreate(table: Identifier, info: TableInfo): StagedTable = created(table)(staged(_, info, "create"))

  override def stageReplace(table: Identifier, info: TableInfo): StagedTable = named(table)(staged(_, info, "replace"))

  override def stageCreateOrReplace(table: Identifier, info: TableInfo): StagedTable = {
    check(table.namespace)
    val name = table.name
    staged(if (names().contains(name)) name else inOtherCase(name).getOrElse(name), info, "either")
  }

  private def created[T](table: Identifier)(create: String => T): T = {
    check(table.namespace)
    named(table)(create)
  }

  private def staged(name: String, info: TableInfo, verb: String): StagedTable = {
    // saveAsTable names a format, also if the program does not.
    val properties = info.properties.asScala.toMap
    val unasked = properties.get("provider").contains(SQLConf.get.defaultDataSourceName)
    val begun = ask("begin", name,
      defined(name, info, if (unasked) properties - "provider" else properties) ~ ("verb" -> verb),
      if (verb == "create") "create" else "replace")
    new NewTable(s"$catalog.$name", DataType.fromJson((begun \ "columns").values.toString).asInstanceOf[StructType],
      begun \ "newTable", info.properties.keySet.asScala.toSet)
  }

  private def defined(name: String, info: TableInfo, properties: Map[String, String]): JObject = {
    if (info.partitions.nonEmpty) {
      throw new UnsupportedOperationException(
        "Tables have no partitions but buckets: TBLPROPERTIES ('bucket.num' = '4', 'bucket.key' = 'column').")
    }
    if (!info.constraints.forall(_.isInstanceOf[PrimaryKey])) {
      throw new UnsupportedOperationException("Tables have no constraint but PRIMARY KEY; leave the others out.")
    }
    val key = info.constraints.collectFirst { case key: PrimaryKey => key.columns.map(_.fieldNames.mkString(".")).toList }
    ("table" -> name) ~ ("columns" -> info.schema.json) ~ ("key" -> key) ~
      ("properties" -> properties) ~ ("caseSensitive" -> SQLConf.get.caseSensitiveAnalysis)
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
    val within = if (to.namespace.headOption.contains(catalog)) to.namespace.tail else to.namespace
    check(within)
    named(table) { name =>
      if (!to.name.equalsIgnoreCase(name) && inOtherCase(to.name).nonEmpty) throw new TableAlreadyExistsException(to)
      try ask("rename", name, ("table" -> name) ~ ("name" -> to.name))
      catch { case refused: Refused if refused.isA("TableExists") => throw new TableAlreadyExistsException(to) }
    }
  }

  private def ask(what: String, of: String, request: JObject): JValue = ask(what, of, request, what)

  private def ask(what: String, of: String, request: JObject, action: String): JValue =
    Helper.plan(
      Python.of(SparkSession.active), ("do" -> "catalog") ~ ("to" -> what) ~ ("path" -> path) ~ request, action, of)

  private def nameOf(table: Identifier): String =
    if (namespaceExists(table.namespace)) table.name else throw new NoSuchTableException(table)

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

object StoreCatalog {
  private val Default = Array("default")
}
