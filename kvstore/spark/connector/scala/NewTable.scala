package kvstore.spark

import java.util

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.connector.catalog.{StagedTable, SupportsWrite, TableCapability}
import org.apache.spark.sql.connector.write.{LogicalWriteInfo, SupportsTruncate, Write, WriteBuilder}
import org.apache.spark.sql.types.StructType
import org.json4s._
import org.json4s.JsonDSL._

/** A table that a statement creates, or has replace another: the store has it once its rows are committed.
  *
  * @param begun the table in words of Python's own
  * @param given names of its properties
  */
class NewTable(override val name: String, override val schema: StructType, begun: JValue, given: Set[String])
    extends StagedTable with SupportsWrite {
  private val python = Python.of(SparkSession.active)
  private val table: JObject = "newTable" -> begun
  private val reads = mutable.ListBuffer.empty[JValue]
  private var staged: JObject = "staged" -> List.empty[String]
  NewTable.current.set(this)

  override def capabilities: util.Set[TableCapability] =
    util.EnumSet.of(TableCapability.BATCH_WRITE, TableCapability.TRUNCATE)

  /** Spark has a replacement written like an INSERT OVERWRITE; a new table has no rows to replace. */
  override def newWriteBuilder(info: LogicalWriteInfo): WriteBuilder = new WriteBuilder with SupportsTruncate {
    private val others = info.options.keySet.asScala.diff(given.map(_.toLowerCase)).toSeq.sorted
    if (others.nonEmpty) {
      throw new Refused(
        "kvstore.errors.InvalidRequest: A table that is created with its rows takes no options; give its properties " +
          "with TBLPROPERTIES, of a DataFrame with writeTo(…).tableProperty(name, value). " +
          s"given=${others.mkString(", ")}", "create", name)
    }

    override def truncate(): WriteBuilder = this

    override def build(): Write =
      new StoreWrite(python, new RowShape(info.schema, None), s"CREATE $name") {
        override protected lazy val job: JValue = {
          val request = ("do" -> "fill") ~ table ~ ("columns" -> info.schema.json) ~ ("reads" -> reads.toList)
          Helper.plan(python, request, "CREATE", name)
          table
        }

        override protected def end(of: JObject): Unit = staged = of
      }
  }

  override def commitStagedChanges(): Unit = {
    NewTable.current.remove()
    StoreWrite.inCommit("the table is there with all its rows, or everything is as it was")(
      Helper.ask(python, ("do" -> "show") ~ table ~ ("staged" -> staged \ "staged")))
  }

  override def abortStagedChanges(): Unit = {
    NewTable.current.remove()
    Helper.ask(python, ("do" -> "abort") ~ table ~ ("staged" -> staged \ "staged"))
  }
}

object NewTable {

  /** The table that this thread creates now: Spark plans its query after it has staged the table. */
  private val current = new ThreadLocal[NewTable]

  /** A query of this thread reads something as it is now, and not as of an earlier moment. */
  def reads(pinned: => JValue): Unit = Option(current.get).foreach(_.reads += pinned)
}
