package kvstore.spark

import java.lang.{Boolean => JavaBoolean, Byte => JavaByte, Double => JavaDouble, Float => JavaFloat}
import java.lang.{Integer => JavaInteger, Long => JavaLong, Short => JavaShort}
import java.math.{BigDecimal => JavaDecimal}
import java.sql.{Date, Timestamp}
import java.time.{Instant, LocalDate, LocalDateTime}
import java.util.Base64

import org.apache.spark.sql.catalyst.util.DateTimeUtils
import org.apache.spark.sql.sources._
import org.json4s._
import org.json4s.JsonDSL._

/** Filters as JSON. What is not here stays with Spark, which evaluates all filters again in any case. */
object Filters {
  def json(filter: Filter): Option[JObject] = filter match {
    case Not(child) => json(child).map(found => ("name" -> "Not") ~ ("child" -> found))
    case IsNull(_) => of(filter, "IsNull")
    case IsNotNull(_) => of(filter, "IsNotNull")
    case EqualTo(_, given) => of(filter, "EqualTo", given)
    case EqualNullSafe(_, given) => of(filter, "EqualNullSafe", given)
    case GreaterThan(_, given) => of(filter, "GreaterThan", given)
    case GreaterThanOrEqual(_, given) => of(filter, "GreaterThanOrEqual", given)
    case LessThan(_, given) => of(filter, "LessThan", given)
    case LessThanOrEqual(_, given) => of(filter, "LessThanOrEqual", given)
    case StringStartsWith(_, given) => of(filter, "StringStartsWith", given)
    case StringEndsWith(_, given) => of(filter, "StringEndsWith", given)
    case StringContains(_, given) => of(filter, "StringContains", given)
    case In(_, given) =>
      val values = given.map(value).toList
      if (values.exists(_.isEmpty)) None else of(filter, "In").map(_ ~ ("values" -> values.flatten))
    case _ => None
  }

  private def of(filter: Filter, name: String): Option[JObject] =
    filter.v2references match {
      case Array(column) => Some(("name" -> name) ~ ("column" -> column.toList))
      case _ => None
    }

  private def of(filter: Filter, name: String, given: Any): Option[JObject] =
    for (found <- of(filter, name); known <- value(given)) yield found ~ ("value" -> known)

  private def value(given: Any): Option[JObject] = Option(given match {
    case null => JObject("plain" -> JNull)
    case flag: JavaBoolean => JObject("plain" -> JBool(flag))
    case number @ (_: JavaByte | _: JavaShort | _: JavaInteger | _: JavaLong) =>
      JObject("plain" -> JInt(number.asInstanceOf[Number].longValue))
    case number @ (_: JavaFloat | _: JavaDouble) => JObject("double" -> JString(number.toString))
    case number: JavaDecimal => JObject("decimal" -> JString(number.toPlainString))
    case text: String => JObject("plain" -> JString(text))
    case bytes: Array[Byte] => JObject("bytes" -> JString(Base64.getEncoder.encodeToString(bytes)))
    case day @ (_: Date | _: LocalDate) => JObject("days" -> JInt(DateTimeUtils.anyToDays(day)))
    case moment @ (_: Timestamp | _: Instant) => JObject("micros" -> JInt(DateTimeUtils.anyToMicros(moment)))
    case moment: LocalDateTime => JObject("local" -> JInt(DateTimeUtils.localDateTimeToMicros(moment)))
    case _ => null
  })
}
