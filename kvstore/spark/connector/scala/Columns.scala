package kvstore.spark

import scala.jdk.CollectionConverters._

import org.apache.arrow.memory.ArrowBuf
import org.apache.arrow.vector._
import org.apache.arrow.vector.complex.{ListVector, MapVector, StructVector}
import org.apache.spark.sql.types.{DataType, Decimal}
import org.apache.spark.sql.vectorized.{ArrowColumnVector, ColumnVector, ColumnarArray, ColumnarMap}
import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.types.UTF8String

/** A column of a stream. `load` takes over the batch that its vector has now, before Spark reads it. */
trait StreamColumn { this: ColumnVector =>
  def load(rows: Int): Unit

  def column: ColumnVector = this
}

object StreamColumn {
  def of(vector: FieldVector): StreamColumn = {
    val known = new SparkColumn(vector)
    vector match {
      case _: TinyIntVector => new NumberColumn(vector, known.dataType, 1)
      case _: SmallIntVector => new NumberColumn(vector, known.dataType, 2)
      case _: IntVector | _: Float4Vector | _: DateDayVector => new NumberColumn(vector, known.dataType, 4)
      case _: BigIntVector | _: Float8Vector | _: TimeStampMicroVector | _: TimeStampMicroTZVector | _: DurationVector |
          _: TimeNanoVector =>
        new NumberColumn(vector, known.dataType, 8)
      case _: BitVector => new FlagColumn(vector, known.dataType)
      case _: DecimalVector => new DecimalColumn(vector, known.dataType)
      case _: VarCharVector | _: VarBinaryVector => new BytesColumn(vector, known.dataType)
      case map: MapVector => new MapColumn(map, known.dataType)
      case list: ListVector => new ListColumn(list, known.dataType)
      case struct: StructVector => new StructColumn(struct, known.dataType)
      case _ => known
    }
  }
}

/** Spark's own column, for types that are rare. Spark must not close it after each batch: the next goes into its vector. */
private class SparkColumn(vector: FieldVector) extends ArrowColumnVector(vector) with StreamColumn {
  override def load(rows: Int): Unit = ()

  override def closeIfFreeable(): Unit = ()
}

/** A column whose values are read by address.
  *
  * What `load` has verified of a batch is not verified again for each value: every buffer is as long as the rows need, and
  * every offset leads into the buffer that it is of. The memory is the vector's, until the next batch is received.
  */
abstract private class AddressColumn(vector: FieldVector, kind: DataType) extends ColumnVector(kind) with StreamColumn {
  private var validity = 0L
  private var nulls = 0

  override def load(rows: Int): Unit = {
    if (vector.getValueCount != rows) {
      throw new DamagedBatch(vector, s"it has ${vector.getValueCount} values, and its batch $rows rows")
    }
    validity = addressOf(vector.getValidityBuffer, (rows + 7L) / 8)
    nulls = if (rows == 0) 0 else vector.getNullCount
  }

  protected def addressOf(buffer: ArrowBuf, bytes: Long): Long = {
    if (buffer.capacity < bytes) {
      throw new DamagedBatch(vector, s"a buffer has ${buffer.capacity} bytes, and its values need $bytes")
    }
    buffer.memoryAddress
  }

  /** Offsets of rows into something that has so many bytes or values. */
  protected def offsetsOf(rows: Int, most: Long): Long =
    if (rows == 0) 0
    else {
      val address = addressOf(vector.getOffsetBuffer, 4L * (rows + 1))
      val end = address + 4L * rows
      var place = address
      var last = 0
      var isOrdered = true
      while (place <= end) {
        val next = Platform.getInt(null, place)
        isOrdered &= next >= last
        last = next
        place += 4
      }
      if (!isOrdered || last > most) throw new DamagedBatch(vector, s"its offsets lead out of its $most values")
      address
    }

  override def hasNull: Boolean = nulls > 0

  override def numNulls: Int = nulls

  override def isNullAt(row: Int): Boolean = nulls != 0 && !isSet(validity, row)

  protected def isSet(bits: Long, row: Int): Boolean =
    (Platform.getByte(null, bits + (row >> 3)) >> (row & 7) & 1) != 0

  override def close(): Unit = () // the memory is the vector's, which the next batch goes into

  override def getBoolean(row: Int): Boolean = throw new UnsupportedOperationException

  override def getByte(row: Int): Byte = throw new UnsupportedOperationException

  override def getShort(row: Int): Short = throw new UnsupportedOperationException

  override def getInt(row: Int): Int = throw new UnsupportedOperationException

  override def getLong(row: Int): Long = throw new UnsupportedOperationException

  override def getFloat(row: Int): Float = throw new UnsupportedOperationException

  override def getDouble(row: Int): Double = throw new UnsupportedOperationException

  override def getDecimal(row: Int, precision: Int, scale: Int): Decimal = throw new UnsupportedOperationException

  override def getUTF8String(row: Int): UTF8String = throw new UnsupportedOperationException

  override def getBinary(row: Int): Array[Byte] = throw new UnsupportedOperationException

  override def getArray(row: Int): ColumnarArray = throw new UnsupportedOperationException

  override def getMap(row: Int): ColumnarMap = throw new UnsupportedOperationException

  override def getChild(place: Int): ColumnVector = throw new UnsupportedOperationException
}

/** Values of a fixed number of bytes; days, and moments as Spark has them, are numbers. */
final private class NumberColumn(vector: FieldVector, kind: DataType, width: Int) extends AddressColumn(vector, kind) {
  private var data = 0L

  override def load(rows: Int): Unit = {
    super.load(rows)
    data = addressOf(vector.getDataBuffer, width.toLong * rows)
  }

  override def getByte(row: Int): Byte = Platform.getByte(null, data + row)

  override def getShort(row: Int): Short = Platform.getShort(null, data + 2L * row)

  override def getInt(row: Int): Int = Platform.getInt(null, data + 4L * row)

  override def getLong(row: Int): Long = Platform.getLong(null, data + 8L * row)

  override def getFloat(row: Int): Float = Platform.getFloat(null, data + 4L * row)

  override def getDouble(row: Int): Double = Platform.getDouble(null, data + 8L * row)
}

final private class FlagColumn(vector: FieldVector, kind: DataType) extends AddressColumn(vector, kind) {
  private var data = 0L

  override def load(rows: Int): Unit = {
    super.load(rows)
    data = addressOf(vector.getDataBuffer, (rows + 7L) / 8)
  }

  override def getBoolean(row: Int): Boolean = isSet(data, row)
}

/** Numbers of 16 bytes, the low ones first. */
final private class DecimalColumn(vector: FieldVector, kind: DataType) extends AddressColumn(vector, kind) {
  private var data = 0L

  override def load(rows: Int): Unit = {
    super.load(rows)
    data = addressOf(vector.getDataBuffer, 16L * rows)
  }

  override def getDecimal(row: Int, precision: Int, scale: Int): Decimal =
    if (isNullAt(row)) null
    else {
      val low = Platform.getLong(null, data + 16L * row)
      val high = Platform.getLong(null, data + 16L * row + 8)
      if (high == low >> 63 && precision <= Decimal.MAX_LONG_DIGITS) Decimal(low, precision, scale)
      else {
        val bytes = java.nio.ByteBuffer.allocate(16).putLong(high).putLong(low).array
        Decimal(new java.math.BigDecimal(new java.math.BigInteger(bytes), scale), precision, scale)
      }
    }
}

/** Text, and bytes. */
final private class BytesColumn(vector: FieldVector, kind: DataType) extends AddressColumn(vector, kind) {
  private var offsets = 0L
  private var data = 0L

  override def load(rows: Int): Unit = {
    super.load(rows)
    val buffer = vector.getDataBuffer
    offsets = offsetsOf(rows, buffer.capacity)
    data = buffer.memoryAddress
  }

  private def start(row: Int): Int = Platform.getInt(null, offsets + 4L * row)

  /** Not a copy: Spark copies what it keeps after the batch. */
  override def getUTF8String(row: Int): UTF8String =
    if (isNullAt(row)) null
    else {
      val first = start(row)
      UTF8String.fromAddress(null, data + first, start(row + 1) - first)
    }

  override def getBinary(row: Int): Array[Byte] =
    if (isNullAt(row)) null
    else {
      val first = start(row)
      val bytes = new Array[Byte](start(row + 1) - first)
      Platform.copyMemory(null, data + first, bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length)
      bytes
    }
}

final private class StructColumn(vector: StructVector, kind: DataType) extends AddressColumn(vector, kind) {
  private val children = vector.getChildrenFromFields.asScala.map(StreamColumn.of).toArray

  override def load(rows: Int): Unit = {
    super.load(rows)
    children.foreach(_.load(rows))
  }

  override def getChild(place: Int): ColumnVector = children(place).column
}

final private class ListColumn(vector: ListVector, kind: DataType) extends AddressColumn(vector, kind) {
  private val values = vector.getDataVector
  private val child = StreamColumn.of(values)
  private var offsets = 0L

  override def load(rows: Int): Unit = {
    super.load(rows)
    offsets = offsetsOf(rows, values.getValueCount)
    child.load(values.getValueCount)
  }

  override def getArray(row: Int): ColumnarArray =
    if (isNullAt(row)) null
    else {
      val first = Platform.getInt(null, offsets + 4L * row)
      new ColumnarArray(child.column, first, Platform.getInt(null, offsets + 4L * row + 4) - first)
    }
}

final private class MapColumn(vector: MapVector, kind: DataType) extends AddressColumn(vector, kind) {
  private val entries = vector.getDataVector
  private val children = entries.getChildrenFromFields.asScala.map(StreamColumn.of)
  private var offsets = 0L

  override def load(rows: Int): Unit = {
    super.load(rows)
    offsets = offsetsOf(rows, entries.getValueCount)
    children.foreach(_.load(entries.getValueCount))
  }

  override def getMap(row: Int): ColumnarMap =
    if (isNullAt(row)) null
    else {
      val first = Platform.getInt(null, offsets + 4L * row)
      val count = Platform.getInt(null, offsets + 4L * row + 4) - first
      new ColumnarMap(children(0).column, children(1).column, first, count)
    }
}

/** A batch that breaks the rules of Arrow: reading it would read other memory of this process. */
class DamagedBatch(vector: FieldVector, what: String)
    extends StoreFailure(
      s"kvstore.errors.CorruptData: The helper process of kvstore sent a damaged batch: of a column $what. Run this " +
        s"again; if it happens again, the memory of this host or the helper is at fault. column=${vector.getName}")
