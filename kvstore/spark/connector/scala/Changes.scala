package kvstore.spark

import java.util

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.connector.catalog.{Changelog, ChangelogContext, ChangelogRange, Column}
import org.apache.spark.sql.connector.catalog.ChangelogContext.DeduplicationMode.NET_CHANGES
import org.apache.spark.sql.connector.expressions.{Expressions, NamedReference}
import org.apache.spark.sql.connector.read.ScanBuilder
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.CaseInsensitiveStringMap
import org.json4s._
import org.json4s.JsonDSL._

/** `CHANGES` of a table. Both images of an update are there, so Spark computes nothing but net changes. */
class StoreChanges(table: ChangesTable, key: Array[NamedReference], whole: Map[String, String]) extends Changelog {
  override def name: String = table.name

  override def columns: Array[Column] = table.columns

  override def containsCarryoverRows: Boolean = false

  override def containsIntermediateChanges: Boolean = key.nonEmpty

  override def representsUpdateAsDeleteAndInsert: Boolean = false

  override def rowId: Array[NamedReference] = key

  override def rowVersion: NamedReference = Expressions.column("_commit_version")

  override def newScanBuilder(given: CaseInsensitiveStringMap): ScanBuilder = {
    val more = given.asCaseSensitiveMap.asScala.filterNot { case (name, _) => StoreChanges.sparks(name.toLowerCase) }
    val ranges = more.keys.filter(name => StoreChanges.ranges(name.toLowerCase)).toSeq.sorted
    if (ranges.nonEmpty) {
      throw new Refused(
        "kvstore.errors.InvalidRequest: CHANGES has its range from FROM and TO, or startingVersion and the like; leave " +
          s"these options out. given=${ranges.mkString(", ")}", "read", table.name)
    }
    new StoreScanBuilder(table.withOptions((whole ++ more).asJava))
  }
}

object StoreChanges {
  private val ranges = Set("startingoffsets", "endingoffsets")
  private val sparks = Set("startingversion", "endingversion", "startingtimestamp", "endingtimestamp",
    "startingboundinclusive", "endingboundinclusive", "deduplicationmode", "computeupdates")

  def load(path: String, table: String, name: String, context: ChangelogContext): StoreChanges = {
    val isNet = context.deduplicationMode == NET_CHANGES
    val (start, end) = context.range match {
      case given: ChangelogRange.VersionRange =>
        (JString(given.startingVersion), given.endingVersion.map[JValue](JString(_)).orElse(JNull))
      case given: ChangelogRange.TimestampRange =>
        (JInt(given.startingTimestamp), given.endingTimestamp.map[JValue](micros => JInt(micros.longValue)).orElse(JNull))
      case _ => (JString("earliest"), JNull)
    }
    val (startsWith, endsWith) = context.range match {
      case _: ChangelogRange.UnboundedRange => (true, true)
      case range => (range.startingBoundInclusive, range.endingBoundInclusive)
    }
    val answer = Helper.plan(
      Python.of(SparkSession.active),
      ("do" -> "changes") ~ ("path" -> path) ~ ("table" -> table) ~ ("net" -> isNet) ~
        ("start" -> bound(start, startsWith)) ~ ("end" -> bound(end, endsWith)),
      "read", name)
    val options = (answer \ "options").asInstanceOf[JObject].obj.collect { case (name, JString(value)) => name -> value }
    val key = Key.of(answer \ "key")
    val refusal =
      if (isNet || context.computeUpdates) Some("A stream of CHANGES has every change: leave `deduplicationMode` and `computeUpdates` out.")
      else if (end != JNull) Some("A stream of CHANGES has no end: leave the ending version or timestamp out.")
      else if (answer \ "ahead" == JBool(true)) Some("A stream of CHANGES can't begin after the last commit; leave the start out, or begin at the last commit.")
      else if (key.isEmpty) Some(s"A log table has no key: stream `$table$$changelog` instead of its CHANGES.")
      else None
    new StoreChanges(new ChangesTable(Loaded.read(answer), options.toMap.asJava, name, refusal), key, options.toMap)
  }

  private def bound(place: JValue, inclusive: Boolean): JObject = ("place" -> place) ~ ("inclusive" -> inclusive)
}

/** The changes in a range; `refusal` says why they can't be a stream. */
class ChangesTable(loaded: Loaded, options: util.Map[String, String], name: String, refusal: Option[String])
    extends StoreTable(loaded.columns, options, Some(loaded), name) {

  def withOptions(given: util.Map[String, String]): ChangesTable = new ChangesTable(loaded, given, name, refusal)

  override def stream(columns: StructType, python: Python): MicroBatchStream =
    refusal match {
      case Some(words) => throw new Refused(s"kvstore.errors.UnsupportedOperation: $words", "stream", name)
      case None => super.stream(columns, python)
    }
}
