package kvstore.spark

import java.io.File

import scala.jdk.CollectionConverters._

import org.apache.spark.SparkConf
import org.apache.spark.sql.SparkSession

/** How a helper process is started: found by the driver, and sent to the executors with each task. */
case class Python(executable: String, environment: Map[String, String])

object Python {

  /** The Python of Spark's own workers, and their environment. */
  def of(spark: SparkSession): Python = {
    val conf = spark.sparkContext.getConf
    val executable = conf.getOption("spark.pyspark.python").orElse(sys.env.get("PYSPARK_PYTHON")).getOrElse("python3")
    Python(executable, conf.getExecutorEnv.toMap)
  }

  /** The environment of a helper: of this process, of the session, and where Spark's own packages are. */
  def environmentOf(python: Python): Map[String, String] = {
    val given = sys.env ++ python.environment
    val packages = given.get("SPARK_HOME").toSeq.flatMap { home =>
      val zips = Option(new File(home, "python/lib").listFiles).toSeq.flatten.map(_.getPath).filter(_.endsWith(".zip"))
      new File(home, "python").getPath +: zips.sorted
    }
    val path = (given.get("PYTHONPATH").toSeq ++ packages).filter(_.nonEmpty).mkString(File.pathSeparator)
    // A process that forks must have no thread, and the library behind numpy starts some unless it is told not to.
    Map("OMP_NUM_THREADS" -> "1", "OPENBLAS_NUM_THREADS" -> "1") ++ given + ("PYTHONPATH" -> path)
  }
}
