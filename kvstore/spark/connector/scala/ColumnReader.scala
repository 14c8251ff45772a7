package kvstore.spark

import java.io.IOException
import java.nio.channels.ClosedChannelException

import org.apache.arrow.memory.RootAllocator
import org.apache.arrow.vector.ValueVector
import org.apache.arrow.vector.ipc.ArrowStreamReader
import org.apache.spark.sql.connector.read.PartitionReader
import org.apache.spark.sql.vectorized.{ArrowColumnVector, ColumnVector, ColumnarBatch}
import org.json4s.JObject

/** A column of a stream, whose next batch goes into the same vector: Spark must not close it after each. */
private class StreamColumn(vector: ValueVector) extends ArrowColumnVector(vector) {
  override def closeIfFreeable(): Unit = ()
}

/** Reads one task's columns from the helper: an Arrow stream, and then one message that says how it ended. */
class ColumnReader(python: Python, request: JObject) extends PartitionReader[ColumnarBatch] {
  private val connection = Helper.connect(python)
  private val memory = new RootAllocator(Long.MaxValue)
  private val stream = new ArrowStreamReader(connection.channel, memory)
  private val batch =
    try {
      connection.ask(request)
      val vectors = receiving(stream.getVectorSchemaRoot).getFieldVectors
      new ColumnarBatch(Array.tabulate[ColumnVector](vectors.size)(place => new StreamColumn(vectors.get(place))))
    } catch {
      case error: Throwable => close(); throw error
    }

  override def next(): Boolean = {
    val hasMore = receiving(stream.loadNextBatch())
    if (hasMore) batch.setNumRows(stream.getVectorSchemaRoot.getRowCount)
    else connection.receive() // a stream that breaks off looks like one that ends
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
