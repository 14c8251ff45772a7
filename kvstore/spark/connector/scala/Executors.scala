package kvstore.spark

import scala.collection.mutable

import org.apache.spark.SparkEnv
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.connector.read.InputPartition
import org.json4s._
import org.json4s.JsonDSL._
import org.json4s.jackson.JsonMethods.{compact, parse, render}

/** The executors of the session. */
object Executors {
  private val checked = mutable.Set.empty[(String, String)]

  def cores: Int = SparkSession.active.sparkContext.defaultParallelism

  /** Has each new host look for the store: Spark would repeat tasks of a host without it, until some host has it or the
    * query fails.
    */
  def check(python: Python, path: String, tasks: Array[InputPartition]): Unit = {
    val context = SparkSession.active.sparkContext
    tasks.headOption.collect { case first: StorePartition if !context.isLocal =>
      val hosts = context.statusTracker.getExecutorInfos.map(_.host).distinct
      val unknown = synchronized(hosts.filterNot(host => checked((host, path))))
      if (unknown.nonEmpty) {
        val request = compact(render(("do" -> "see") ~ ("task" -> first.task)))
        val found = context.makeRDD(unknown.toSeq.map(host => (host, Seq(host)))).map(new Look(python, request)).collect()
        found.foreach { case (_, refusal) => refusal.foreach(line => throw new Refused(line, "plan", "read")) }
        synchronized((unknown ++ found.map(_._1)).foreach(host => checked += ((host, path))))
      }
    }
  }
}

/** Looks for a store, on the host of an executor: the name of the host, and what it is refused with. */
private class Look(python: Python, request: String) extends (String => (String, Option[String])) with Serializable {
  override def apply(wanted: String): (String, Option[String]) = {
    val refusal =
      try { Helper.ask(python, parse(request).asInstanceOf[JObject]); None }
      catch { case refused: StoreFailure => Some(refused.line) }
    (SparkEnv.get.blockManager.blockManagerId.host, refusal)
  }
}
