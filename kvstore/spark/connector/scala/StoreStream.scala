package kvstore.spark

import java.util
import java.util.Optional

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.connector.read.{InputPartition, PartitionReaderFactory}
import org.apache.spark.sql.connector.read.streaming._
import org.apache.spark.sql.types.StructType
import org.json4s._
import org.json4s.JsonDSL._
import org.json4s.jackson.JsonMethods.{compact, render}

/** A place in a stream: the text that the Python source has in its checkpoints, too. */
case class StoreOffset(json: String) extends Offset

/** A stream of changes. One process of the helper decides for it as long as the query runs, and keeps the store open. */
class StoreStream(table: StoreTable, columns: StructType, python: Python)
    extends MicroBatchStream with SupportsTriggerAvailableNow with ReportsSourceMetrics {
  private lazy val connection = Helper.connect(python)
  private lazy val began =
    connection.ask(("do" -> "stream") ~ ("options" -> table.optionsAsJson) ~ ("columns" -> columns.json))

  private def call(name: String, request: JObject = JObject()): JValue = synchronized {
    began
    connection.ask(("call" -> name) ~ request)
  }

  private def offset(answer: JValue): Offset = answer \ "offset" match {
    case JString(text) => StoreOffset(text)
    case other => throw new IllegalStateException(s"No offset: $other")
  }

  override def initialOffset(): Offset = offset(call("initial"))

  override def deserializeOffset(json: String): Offset = StoreOffset(json)

  override def getDefaultReadLimit: ReadLimit = synchronized(began \ "limit") match {
    case JInt(rows) => ReadLimit.maxRows(rows.toLong)
    case _ => ReadLimit.allAvailable()
  }

  override def prepareForTriggerAvailableNow(): Unit = call("availableNow")

  override def latestOffset(): Offset = throw new UnsupportedOperationException("Streams have a limit.")

  override def latestOffset(start: Offset, limit: ReadLimit): Offset = {
    val rows = Option(limit).collect { case most: ReadMaxRows => most.maxRows }
    offset(call("latest", ("start" -> start.json) ~ ("limit" -> rows)))
  }

  override def reportLatestOffset(): Offset = offset(call("report"))

  override def metrics(consumed: Optional[Offset]): util.Map[String, String] =
    if (consumed.isEmpty) util.Map.of()
    else {
      val JObject(found) = call("metrics", "end" -> consumed.get.json) \ "metrics": @unchecked
      found.collect { case (name, JString(value)) => name -> value }.toMap.asJava
    }

  override def planInputPartitions(start: Offset, end: Offset): Array[InputPartition] =
    table.partitions(
      python, call("plan", ("start" -> start.json) ~ ("end" -> end.json) ~ ("cores" -> Executors.cores)))

  override def createReaderFactory(): PartitionReaderFactory =
    new StoreReaderFactory(python, compact(render(("do" -> "read") ~ ("columns" -> columns.json))))

  override def commit(end: Offset): Unit = call("commit", "end" -> end.json)

  override def stop(): Unit = connection.close()
}
