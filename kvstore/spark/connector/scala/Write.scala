package kvstore.spark

import java.io.IOException

import org.apache.arrow.vector.ipc.ArrowStreamWriter
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{GenericInternalRow, JoinedRow}
import org.apache.spark.sql.connector.expressions.filter.Predicate
import org.apache.spark.sql.connector.write._
import org.apache.spark.sql.connector.write.streaming.StreamingWrite
import org.apache.spark.sql.execution.arrow.ArrowWriter
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.sources.Filter
import org.apache.spark.sql.types.{StringType, StructType}
import org.apache.spark.unsafe.types.UTF8String
import org.json4s._
import org.json4s.JsonDSL._
import org.json4s.jackson.JsonMethods.{compact, parse, render}

/** INSERT, INSERT OVERWRITE of all rows or of those that pass a condition, and a MERGE that only inserts; streams are
  * written by the Python source.
  *
  * @param columns of the table
  * @param pinned what such a MERGE has read of the table
  */
class StoreWriteBuilder(
    table: String, columns: StructType, info: LogicalWriteInfo, options: JObject, pinned: JValue, stream: WriteBuilder)
    extends WriteBuilder with SupportsOverwrite with SupportsDynamicOverwrite {
  private var replaces = false
  private var condition: Option[List[JObject]] = None

  override def truncate(): WriteBuilder = {
    replaces = true
    this
  }

  override def canOverwrite(predicates: Array[Predicate]): Boolean =
    super.canOverwrite(predicates) || refuse(predicates.mkString(" AND "))

  override def overwrite(filters: Array[Filter]): WriteBuilder = {
    condition = Some(filters.toList.map(each => Filters.json(each).map(resolved).getOrElse(refuse(each.toString))))
    truncate()
  }

  /** A condition with the table's names of columns: Spark leaves them as the user has written them. */
  private def resolved(condition: JObject): JObject = condition.mapField {
    case ("column", JArray(JString(given) :: rest)) =>
      val names = columns.fieldNames
      val column = names.find(_ == given).orElse(names.find(SQLConf.get.resolver(_, given))).getOrElse(given)
      "column" -> JArray(JString(column) :: rest)
    case other => other
  }.asInstanceOf[JObject]

  private def refuse(condition: String): Nothing =
    throw new Refused(
      "kvstore.errors.UnsupportedOperation: Rows can't be replaced by a condition like this; compare columns with " +
        s"values, joined by AND, or DELETE the rows and INSERT the others. condition=$condition", "overwrite", table)

  override def overwriteDynamicPartitions(): WriteBuilder =
    throw new Refused(
      "kvstore.errors.UnsupportedOperation: A table has no partitions that could be overwritten. INSERT INTO replaces " +
        "rows of the same keys; to replace all rows, set spark.sql.sources.partitionOverwriteMode to `static`, or use " +
        "overwrite(lit(True)) of a DataFrame.", "overwrite", table)

  override def build(): Write = {
    val python = Python.of(SparkSession.active)
    new StoreWrite(python, new RowShape(info.schema, None), s"INSERT $table", pinned) {
      override protected lazy val job: JValue =
        Helper.plan(python, ("do" -> "insert") ~ ("options" -> options) ~ ("columns" -> info.schema.json) ~
          ("replaces" -> replaces) ~ ("condition" -> condition), "INSERT", table)

      override def toStreaming: StreamingWrite =
        (stream match {
          case truncates: SupportsTruncate if replaces => truncates.truncate()
          case other => other
        }).build().toStreaming
    }
  }
}

/** A write whose tasks have their rows staged by a helper; a helper of the driver commits them all. */
abstract class StoreWrite(
    python: Python, shape: RowShape, override val description: String, pinned: JValue = JNothing) extends DeltaWrite {
  protected def job: JValue

  /** Commits what the tasks have staged. */
  protected def end(of: JObject): Unit =
    StoreWrite.inCommit("all rows of this statement are written, or none")(
      Helper.ask(python, ("do" -> "commit") ~ of))

  override def toString: String = description

  override def toBatch: DeltaBatchWrite = new DeltaBatchWrite {
    private val JObject(fields) = job: @unchecked

    override def createBatchWriterFactory(info: PhysicalWriteInfo): DeltaWriterFactory =
      new StoreWriterFactory(python, compact(render(request("stage"))), shape)

    override def commit(messages: Array[WriterCommitMessage]): Unit = commit(staged(messages))

    /** Spark plans a MERGE that only inserts as an INSERT; that it is one shows here. */
    override def commit(messages: Array[WriterCommitMessage], summary: WriteSummary): Unit = summary match {
      case _: MergeSummary => commit(staged(messages) ~ ("pinned" -> pinned))
      case _ => commit(messages)
    }

    private def commit(what: JObject): Unit = end(JObject(fields) ~ what)

    override def abort(messages: Array[WriterCommitMessage]): Unit =
      Helper.ask(python, request("abort") ~ staged(messages))

    private def request(what: String): JObject = JObject(("do" -> JString(what)) :: fields)

    private def staged(messages: Array[WriterCommitMessage]): JObject =
      "staged" -> messages.toList.collect { case StoreStaged(staged) => staged }
  }
}

object StoreWrite {

  /** Commits; says what is known if the helper ends meanwhile. */
  def inCommit(outcomes: String)(commit: => Unit): Unit =
    try commit
    catch {
      case _: HelperEnded =>
        throw new StoreFailure(
          s"The helper process of kvstore ended in the middle of the commit; was it killed? Either $outcomes: look " +
            "before you run it again.")
    }
}

/** What a task has staged, in words of Python's own. */
case class StoreStaged(staged: String) extends WriterCommitMessage

/** The columns of a job's rows; `key` are those by which a statement names rows, if it is no INSERT. */
class RowShape(columns: StructType, key: Option[StructType]) extends Serializable {
  private val own = if (columns.isEmpty) key.getOrElse(columns) else columns // a DELETE has no others
  private val places = key.map(_.fieldNames.map(own.fieldIndex)).getOrElse(Array.empty)

  /** The columns that are sent. */
  val sent: StructType = if (key.isEmpty) own else own.add("_change_type", StringType, nullable = false)

  def of(row: InternalRow, kind: UTF8String): InternalRow =
    if (key.isEmpty) row else new JoinedRow(row, InternalRow(kind))

  /** A row that has only these values of its key. */
  def ofKey(id: InternalRow): InternalRow = {
    val row = new GenericInternalRow(own.length)
    for ((place, from) <- places.zipWithIndex) row.update(place, id.get(from, own(place).dataType))
    row
  }

  def isOf(row: InternalRow, id: InternalRow): Boolean = places.indices.forall { from =>
    val place = places(from)
    val kind = own(place).dataType
    (row.get(place, kind), id.get(from, kind)) match {
      case (one: Array[Byte], other: Array[Byte]) => one.sameElements(other)
      case (one, other) => one == other
    }
  }
}

class StoreWriterFactory(python: Python, request: String, shape: RowShape) extends DeltaWriterFactory {
  override def createWriter(partition: Int, attempt: Long): DeltaWriter[InternalRow] = {
    val JObject(fields) = parse(request): @unchecked
    new StoreWriter(python, JObject(fields) ~ ("partition" -> partition) ~ ("attempt" -> attempt), shape)
  }
}

/** Sends the rows of one task to the helper. If the connection closes before its end, the helper keeps nothing. */
class StoreWriter(python: Python, request: JObject, shape: RowShape) extends DeltaWriter[InternalRow] {
  private val connection = Helper.connect(python)
  private val rows = ArrowWriter.create(shape.sent, "UTC", true, false)
  private val stream = new ArrowStreamWriter(rows.root, null, connection.channel)
  private var waiting = 0
  private var hasBegun, isOver, isClosed = false

  override def insert(row: InternalRow): Unit = add(shape.of(row, StoreWriter.Insert))

  override def delete(metadata: InternalRow, id: InternalRow): Unit =
    add(shape.of(shape.ofKey(id), StoreWriter.Delete))

  override def update(metadata: InternalRow, id: InternalRow, row: InternalRow): Unit =
    if (shape.isOf(row, id)) add(shape.of(row, StoreWriter.Update))
    else {
      delete(metadata, id)
      add(shape.of(row, StoreWriter.OtherKey))
    }

  private def add(row: InternalRow): Unit = {
    rows.write(row)
    waiting += 1
    val isFull = waiting % StoreWriter.Rows == 0 ||
      waiting % StoreWriter.LookEvery == 0 && rows.sizeInBytes() >= StoreWriter.Bytes
    if (isFull) flush()
  }

  private def flush(): Unit = sending {
    begin()
    rows.finish()
    stream.writeBatch()
    rows.reset()
    waiting = 0
  }

  private def begin(): Unit = if (!hasBegun) {
    connection.send(request)
    stream.start()
    hasBegun = true
  }

  override def commit(): WriterCommitMessage = {
    if (waiting > 0) flush()
    sending {
      begin()
      stream.end()
      connection.send(JObject())
    }
    val answer = connection.receive()
    isOver = true
    answer \ "staged" match {
      case JString(staged) => StoreStaged(staged)
      case other => throw new IllegalStateException(s"Nothing was staged: $other")
    }
  }

  private def sending(run: => Unit): Unit =
    try run
    catch {
      case _: IOException if !Thread.currentThread.isInterrupted => throw new HelperEnded
    }

  override def abort(): Unit = ()

  override def close(): Unit = if (!isClosed) {
    isClosed = true // a second call would take the connection from another task
    try if (isOver) Helper.giveBack(python, connection) else connection.close()
    finally rows.root.close()
  }
}

object StoreWriter {
  val Rows: Int = 1 << 14
  val LookEvery: Int = 64
  val Bytes: Long = 8L << 20
  private val Insert = UTF8String.fromString("insert")
  private val Update = UTF8String.fromString("update_postimage")

  /** A row that had another key: it is a new one for the table, and has kept the values that were not assigned. */
  private val OtherKey = UTF8String.fromString("append")
  private val Delete = UTF8String.fromString("delete")
}
