package kvstore.spark

import java.io.IOException
import java.nio.ByteBuffer
import java.nio.channels.{ClosedByInterruptException, ClosedChannelException, SocketChannel}
import java.nio.charset.StandardCharsets.UTF_8
import java.util

import org.apache.spark.SparkThrowable
import org.apache.spark.sql.execution.QueryExecutionException
import org.json4s._
import org.json4s.jackson.JsonMethods.{compact, parse, render}

/** What a store refuses, as one line: the class of its error, and what it says. Spark shows it as it is. */
class StoreFailure(val line: String) extends QueryExecutionException(line, null) with SparkThrowable {
  override def getCondition: String = "PYTHON_EXCEPTION"

  override def getMessageParameters: util.Map[String, String] = util.Map.of("msg", line, "traceback", "")

  override def fillInStackTrace(): Throwable = this // the line says all
}

/** The other end is gone. */
class HelperEnded
    extends StoreFailure(
      "The helper process of kvstore ended before it had answered; was it killed, perhaps because memory was short? Run " +
        "this again: another one is started. If that ends, too, the standard error of Spark's process on this host says " +
        "why.")

/** A conversation with a process of the helper. A message is its length, in four bytes, and JSON. */
class Connection(val channel: SocketChannel) extends AutoCloseable {
  private var isAnswered = true

  def send(message: JObject): Unit = {
    val text = compact(render(message)).getBytes(UTF_8)
    val buffer = ByteBuffer.allocate(4 + text.length).putInt(text.length).put(text).flip()
    while (buffer.hasRemaining) channel.write(buffer)
  }

  /** The next message; raises the error that it carries. */
  def receive(): JValue = {
    val length = read(4).getInt
    val message = parse(UTF_8.decode(read(length)).toString)
    isAnswered = (message \ "ends") != JBool(true)
    message \ "error" match {
      case JString(error) => throw new StoreFailure(error)
      case _ => message
    }
  }

  def ask(request: JObject): JValue = {
    isAnswered = false
    try send(request)
    catch { case error: IOException if !error.isInstanceOf[ClosedByInterruptException] => throw new HelperEnded }
    receive()
  }

  /** Whether all questions are answered, and the other end waits for the next. */
  def isIdle: Boolean =
    try {
      isAnswered && channel.isOpen && {
        channel.configureBlocking(false)
        try channel.read(ByteBuffer.allocate(1)) == 0 finally channel.configureBlocking(true)
      }
    } catch { case _: IOException => false }

  override def close(): Unit = channel.close()

  private def read(length: Int): ByteBuffer = {
    val buffer = ByteBuffer.allocate(length)
    while (buffer.hasRemaining) {
      val count =
        try channel.read(buffer)
        catch { case error: IOException if !error.isInstanceOf[ClosedChannelException] => throw new HelperEnded }
      if (count < 0) throw new HelperEnded
    }
    buffer.flip()
  }
}
