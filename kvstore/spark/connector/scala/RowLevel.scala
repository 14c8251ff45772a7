package kvstore.spark

import java.util
import java.util.Properties

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.catalyst.analysis.{IndexAlreadyExistsException, NoSuchIndexException}
import org.apache.spark.sql.connector.catalog.{SupportsRowLevelOperations, TableCapability, TruncatableTable}
import org.apache.spark.sql.connector.catalog.index.{SupportsIndex, TableIndex}
import org.apache.spark.sql.connector.expressions.{Expressions, NamedReference}
import org.apache.spark.sql.connector.read.ScanBuilder
import org.apache.spark.sql.connector.write._
import org.apache.spark.sql.util.CaseInsensitiveStringMap
import org.json4s._
import org.json4s.JsonDSL._

/** A table of a catalog: it takes INSERT, UPDATE, DELETE, MERGE, TRUNCATE, CREATE INDEX and DROP INDEX. */
class CatalogTable(loaded: Loaded, options: util.Map[String, String], name: String)
    extends StoreTable(loaded.columns, options, Some(loaded), name)
    with SupportsRowLevelOperations with TruncatableTable with SupportsIndex {

  override def capabilities: util.Set[TableCapability] = {
    val all = util.EnumSet.of(TableCapability.OVERWRITE_BY_FILTER, TableCapability.OVERWRITE_DYNAMIC)
    all.addAll(super.capabilities)
    all
  }

  /** Which table it is, the catalog says: options do not lead to another one. */
  override protected def withOwn(given: CaseInsensitiveStringMap): CaseInsensitiveStringMap = {
    val others = List("path", "table").filter(given.containsKey)
    if (others.nonEmpty) {
      throw new Refused(
        "kvstore.errors.InvalidRequest: The name in the catalog says which table this is; leave these options out. " +
          s"given=${others.mkString(", ")}", "use", name)
    }
    super.withOwn(given)
  }

  override def newScanBuilder(given: CaseInsensitiveStringMap): ScanBuilder = {
    if (given.containsKey("columns")) {
      throw new Refused(
        "kvstore.errors.InvalidRequest: A query on a table of a catalog says itself which columns it reads; leave this " +
          s"option out. columns=${given.get("columns")}", "read", name)
    }
    super.newScanBuilder(given)
  }

  override def newWriteBuilder(info: LogicalWriteInfo): WriteBuilder =
    new StoreWriteBuilder(name, loaded.columns, info, Json.of(withOwn(info.options)), loaded.pinned, super.newWriteBuilder(info))

  override def truncateTable(): Boolean = truncateTable(CaseInsensitiveStringMap.empty)

  /** TRUNCATE, and DELETE without a condition, which Spark does not plan as another DELETE. */
  override def truncateTable(given: CaseInsensitiveStringMap): Boolean = {
    val request = ("do" -> "truncate") ~ ("command" -> "DELETE") ~ ("options" -> Json.of(withOwn(given))) ~
      ("pinned" -> loaded.pinned)
    Helper.plan(Python.of(SparkSession.active), request, "TRUNCATE", name)
    true
  }

  override def createIndex(
      index: String, columns: Array[NamedReference],
      ofColumns: util.Map[NamedReference, util.Map[String, String]], given: util.Map[String, String]): Unit = {
    if (indexExists(index)) throw new IndexAlreadyExistsException(index, name, None)
    val all = given.asScala ++ ofColumns.asScala.values.flatMap(_.asScala)
    askIndexes("createIndex", "create", ("index" -> index) ~ ("options" -> all.toMap) ~
      ("columns" -> columns.map(_.fieldNames.mkString(".")).toList))
  }

  override def dropIndex(index: String): Unit = {
    if (!indexExists(index)) throw new NoSuchIndexException(index, name, None)
    askIndexes("dropIndex", "drop", "index" -> index)
  }

  override def indexExists(index: String): Boolean = listIndexes.exists(_.indexName == index)

  override def listIndexes: Array[TableIndex] =
    (askIndexes("indexes", "find", JObject()) \ "indexes" match {
      case JObject(fields) => fields.map { case (index, columns) =>
        new TableIndex(index, "", Key.of(columns), new util.HashMap, new Properties)
      }
      case _ => Nil
    }).toArray

  private def askIndexes(what: String, action: String, request: JObject): JValue = {
    val known = new CaseInsensitiveStringMap(options)
    val place = ("path" -> known.get("path")) ~ ("table" -> known.get("table"))
    Helper.plan(Python.of(SparkSession.active), ("do" -> "catalog") ~ ("to" -> what) ~ place ~ request, action, name)
  }

  /** Asks whether the table takes the statement: a refusal comes while it is planned. */
  override def newRowLevelOperationBuilder(info: RowLevelOperationInfo): RowLevelOperationBuilder = () => {
    val request = ("do" -> "statement") ~ ("command" -> info.command.name) ~
      ("options" -> Json.of(withOwn(info.options))) ~ ("pinned" -> loaded.pinned)
    val python = Python.of(SparkSession.active)
    new StoreOperation(this, info.command, python, Helper.plan(python, request, info.command.name, name))
  }
}

/** References to the columns of a key. */
object Key {
  def of(names: JValue): Array[NamedReference] =
    names.children.collect { case JString(name) =>
      Expressions.column(s"`${name.replace("`", "``")}`")
    }.toArray
}

/** A statement that changes rows, which it names by their primary key. */
class StoreOperation(
    table: CatalogTable, override val command: RowLevelOperation.Command, python: Python, planned: JValue)
    extends SupportsDelta {

  override def rowId: Array[NamedReference] = Key.of(planned \ "key")

  /** Of what was read when the table was loaded, because the commit counts changes from there on. */
  override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder = new StoreScanBuilder(table, isOfStatement = true)

  override def newWriteBuilder(info: LogicalWriteInfo): DeltaWriteBuilder = new DeltaWriteBuilder {
    override def build(): DeltaWrite =
      new StoreWrite(python, new RowShape(info.schema, Some(info.rowIdSchema.get)), s"$command ${table.name}") {
        override protected def job: JValue = planned
      }
  }
}
