package kvstore.spark

import java.io.IOException
import java.nio.channels.ClosedChannelException

import scala.jdk.CollectionConverters._

import org.apache.arrow.memory.RootAllocator
import org.apache.arrow.vector.ipc.ArrowStreamReader
import org.apache.spark.sql.connector.read.PartitionReader
import org.apache.spark.sql.vectorized.ColumnarBatch
import org.json4s.JObject

/** Reads one task's columns from the helper: an Arrow stream, and then one message that says how it ended. */
class ColumnReader(python: Python, request: JObject) extends PartitionReader[ColumnarBatch] {
  private val connection = Helper.connect(python)
  private val memory = new RootAllocator(Long.MaxValue)
  private val stream = new ArrowStreamReader(connection.channel, memory)
  private val columns =
    try {
      connection.ask(request)
      receiving(stream.getVectorSchemaRoot).getFieldVectors.asScala.map(StreamColumn.of).toArray
    } catch {
      case error: Throwable => close(); throw error
    }
  private val batch = new ColumnarBatch(columns.map(_.column))

  override def next(): Boolean = {
    val hasMore = receiving(stream.loadNextBatch())
    if (hasMore) {
      val rows = stream.getVectorSchemaRoot.getRowCount
      columns.foreach(_.load(rows))
      batch.setNumRows(rows)
    } else connection.receive() // a stream that breaks off looks like one that ends
    hasMore
  }

  /** Arrow's reader raises an error of its own where a batch breaks off. */
  private def receiving[T](run: => T): T =
    try run
    catch { case error: IOException if !error.isInstanceOf[ClosedChannelException] => throw new HelperEnded }

  override def get(): ColumnarBatch = batch

  override def close(): Unit = {
    try stream.close(false)
    finally
      try memory.close() // it complains if a batch broke off
      finally connection.close()
  }
}
