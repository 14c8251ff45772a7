package kvstore.spark

import java.io.IOException
import java.nio.channels.{ClosedChannelException, ReadableByteChannel}

import scala.jdk.CollectionConverters._

import org.apache.arrow.memory.RootAllocator
import org.apache.arrow.vector.ipc.ArrowStreamReader
import org.apache.spark.sql.connector.read.PartitionReader
import org.apache.spark.sql.vectorized.ColumnarBatch
import org.json4s.JObject

/** The batches of an Arrow stream, as columns. */
class ColumnStream(in: ReadableByteChannel) extends AutoCloseable {
  private val memory = new RootAllocator(Long.MaxValue)
  private val stream = new ArrowStreamReader(in, memory)
  private val columns =
    try stream.getVectorSchemaRoot.getFieldVectors.asScala.map(StreamColumn.of).toArray
    catch { case error: Throwable => close(); throw error }

  /** What `next` has read, until it is called again. */
  val batch = new ColumnarBatch(columns.map(_.column))

  def next(): Boolean = {
    val hasMore = stream.loadNextBatch()
    if (hasMore) {
      val rows = stream.getVectorSchemaRoot.getRowCount
      columns.foreach(_.load(rows))
      batch.setNumRows(rows)
    }
    hasMore
  }

  override def close(): Unit =
    try stream.close(false)
    finally memory.close() // it complains if a batch broke off
}

/** Reads one task's columns from the helper: an Arrow stream, and then one message that says how it ended. */
class ColumnReader(python: Python, request: JObject) extends PartitionReader[ColumnarBatch] {
  private val connection = Helper.connect(python)
  private val stream =
    try {
      connection.ask(request)
      receiving(new ColumnStream(connection.channel))
    } catch { case error: Throwable => connection.close(); throw error }

  private var isOver, isClosed = false

  override def next(): Boolean = {
    val hasMore = receiving(stream.next())
    if (!hasMore) {
      connection.receive() // a stream that breaks off looks like one that ends
      isOver = true
    }
    hasMore
  }

  /** Arrow's reader raises an error of its own where a batch breaks off. */
  private def receiving[T](run: => T): T =
    try run
    catch { case error: IOException if !error.isInstanceOf[ClosedChannelException] => throw new HelperEnded }

  override def get(): ColumnarBatch = stream.batch

  override def close(): Unit = if (!isClosed) {
    isClosed = true // after an error Spark calls this again, when another task may have the connection
    try stream.close()
    finally if (isOver) Helper.giveBack(python, connection) else connection.close()
  }
}
