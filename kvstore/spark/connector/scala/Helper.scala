package kvstore.spark

import java.io.{BufferedReader, IOException, InputStreamReader}
import java.net.{StandardProtocolFamily, UnixDomainSocketAddress}
import java.nio.channels.{ClosedByInterruptException, SocketChannel}
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path}
import java.security.SecureRandom

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import org.apache.spark.sql.AnalysisException
import org.json4s._
import org.json4s.JsonDSL._

/** A running helper process. It ends when this process does, because its standard input ends then. */
private class Helper(python: Python) {
  private val token = {
    val bytes = new Array[Byte](32)
    new SecureRandom().nextBytes(bytes)
    bytes.map(byte => f"$byte%02x").mkString
  }
  private val process = {
    val builder = new ProcessBuilder(python.executable, "-m", "kvstore.spark.connector.helper")
    builder.redirectError(ProcessBuilder.Redirect.INHERIT)
    builder.environment.putAll(Python.environmentOf(python).asJava)
    builder.start()
  }
  private val socket: Path = {
    process.getOutputStream.write(s"$token\n".getBytes(UTF_8))
    process.getOutputStream.flush()
    val line = new BufferedReader(new InputStreamReader(process.getInputStream, UTF_8)).readLine()
    if (line == null) {
      throw new IOException(
        s"The helper process of kvstore did not start: `${python.executable} -m kvstore.spark.connector.helper` ended " +
          s"with status ${process.waitFor()}. Its standard error, in the log of this process, says why; the Python of " +
          "spark.pyspark.python or PYSPARK_PYTHON needs kvstore on every machine.")
    }
    Path.of(line)
  }

  def isAlive: Boolean = process.isAlive

  def connect(): Connection = {
    val channel = SocketChannel.open(StandardProtocolFamily.UNIX)
    try {
      channel.connect(UnixDomainSocketAddress.of(socket))
      val connection = new Connection(channel)
      connection.send("token" -> token)
      try connection.receive() // a helper that was killed just now is noticed here, where another can be started
      catch { case ended: StoreFailure => throw new IOException(ended.line) }
      connection
    } catch {
      case error: Throwable => channel.close(); throw error
    }
  }

  /** Removes what a helper that was killed has left. */
  def remove(): Unit = {
    process.destroyForcibly()
    Files.deleteIfExists(socket)
    Files.deleteIfExists(socket.getParent)
  }
}

/** What a store refuses while a query is analysed or planned, in the words that Spark has for sources in Python. */
class Refused(val refusal: String, action: String, of: String)
    extends AnalysisException(
      "PYTHON_DATA_SOURCE_ERROR", Map("action" -> action, "type" -> of, "msg" -> s"$refusal\n"), None) {
  def isA(error: String): Boolean = refusal.startsWith(s"kvstore.errors.$error:")
}

/** The helper processes of this process: one for each Python. */
object Helper {
  private val running = mutable.Map.empty[Python, Helper]

  /** Connections that wait to be used again: a new one costs a fork, and all that a process does for the first time. */
  private val waiting = mutable.Map.empty[Python, List[Connection]]

  private val WaitingMax = math.min(Runtime.getRuntime.availableProcessors, 8) + 1

  /** A connection to a helper, which is started at the first call and after it has died. */
  def connect(python: Python): Connection = {
    val (helper, isNew) = current(python)
    waitingOne(python).getOrElse {
      try helper.connect()
      catch {
        case error: IOException if !isNew && !error.isInstanceOf[ClosedByInterruptException] => // it has just died
          synchronized { if (running.get(python).contains(helper)) remove(python) }
          current(python)._1.connect()
      }
    }
  }

  @scala.annotation.tailrec
  private def waitingOne(python: Python): Option[Connection] = {
    val found = synchronized {
      val all = waiting.getOrElse(python, Nil)
      waiting(python) = all.drop(1)
      all.headOption
    }
    if (found.forall(_.isIdle)) found
    else {
      found.foreach(_.close())
      waitingOne(python)
    }
  }

  /** Ends the use of a connection; it waits for another one if nothing is left of this. */
  def giveBack(python: Python, connection: Connection): Unit = {
    val keeps = connection.isIdle && synchronized {
      val all = waiting.getOrElse(python, Nil)
      if (all.length < WaitingMax) waiting(python) = connection :: all
      all.length < WaitingMax
    }
    if (!keeps) connection.close()
  }

  /** Asks for one answer. */
  def ask(python: Python, request: JObject): JValue = {
    val connection = connect(python)
    try connection.ask(request)
    finally giveBack(python, connection)
  }

  /** Asks while a query is analysed or planned; says what the store refuses as Spark says it of Python's sources. */
  def plan(python: Python, request: JObject, action: String = "create", of: String = "instance"): JValue =
    try ask(python, request)
    catch { case refused: StoreFailure => throw new Refused(refused.line, action, of) }

  private def current(python: Python): (Helper, Boolean) = synchronized {
    running.get(python).filter(_.isAlive) match {
      case Some(helper) => (helper, false)
      case None =>
        remove(python)
        val helper = new Helper(python)
        running(python) = helper
        (helper, true)
    }
  }

  private def remove(python: Python): Unit = {
    running.remove(python).foreach(_.remove())
    waiting.remove(python).foreach(_.foreach(_.close()))
  }
}
