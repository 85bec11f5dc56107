/*
 * Writes and reads tables with Iceberg's own implementation, for tests of loads.
 *
 * Each line of stdin is a command as JSON; the answer is one line of JSON, {"error": …} if it failed.
 */

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.Closeable;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.iceberg.*;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.data.*;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.deletes.*;
import org.apache.iceberg.encryption.EncryptedOutputFile;
import org.apache.iceberg.expressions.Expressions;
import org.apache.iceberg.io.*;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.Types;

public class IcebergTables {
  private static final ObjectMapper JSON = new ObjectMapper();
  private final JdbcCatalog catalog = new JdbcCatalog();
  private long files = 0;

  public static void main(String[] arguments) throws Exception {
    IcebergTables tables = new IcebergTables();
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      ObjectNode answer = JSON.createObjectNode();
      try {
        tables.run(JSON.readTree(line), answer);
      } catch (Exception | LinkageError e) {
        answer.put("error", e.toString());
      }
      System.out.println(answer);
      System.out.flush();
    }
  }

  private void run(JsonNode given, ObjectNode answer) throws Exception {
    if (given.get("do").asText().equals("open")) {
      Map<String, String> properties = new HashMap<>();
      given.get("properties").properties().forEach(e -> properties.put(e.getKey(), e.getValue().asText()));
      catalog.initialize(given.get("name").asText(), properties);
      return;
    }
    TableIdentifier name = TableIdentifier.parse(given.get("table").asText());
    if (given.get("do").asText().equals("create")) {
      if (!catalog.namespaceExists(name.namespace())) catalog.createNamespace(name.namespace());
      Schema schema = SchemaParser.fromJson(given.get("schema"));
      PartitionSpec.Builder spec = PartitionSpec.builderFor(schema);
      given.get("by").forEach(column -> spec.identity(column.asText()));
      Map<String, String> properties = Map.of("format-version", given.get("version").asText());
      catalog.createTable(name, schema, spec.build(), given.get("location").asText(), properties);
      return;
    }
    Table table = catalog.loadTable(name);
    switch (given.get("do").asText()) {
      case "append" -> answer.put("file", append(table, given.get("rows"), given.path("schema").asInt(-1)));
      case "positions" -> positions(table, given);
      case "vector" -> vector(table, given);
      case "equality" -> equality(table, given);
      case "change" -> change(table, given.get("changes"));
      case "partition" -> table.updateSpec().addField(given.get("column").asText()).commit();
      case "read" -> answer.set("rows", read(table));
      default -> throw new IllegalArgumentException(given.toString());
    }
    table.refresh();
    if (table.currentSnapshot() != null) answer.put("snapshot", table.currentSnapshot().snapshotId());
  }

  private Record record(Types.StructType type, JsonNode values) {
    GenericRecord row = GenericRecord.create(type);
    for (Types.NestedField field : type.fields()) {
      row.setField(field.name(), value(field.type(), values.get(field.name())));
    }
    return row;
  }

  private Object value(Type type, JsonNode given) {
    if (given == null || given.isNull()) return null;
    if (type.isStructType()) return record(type.asStructType(), given);
    Object value = SingleValueParser.fromJson(type, given);
    return type.isPrimitiveType() ? IdentityPartitionConverters.convertConstant(type, value) : value;
  }

  private OutputFileFactory places(Table table, FileFormat format) {
    return OutputFileFactory.builderFor(table, 1, ++files).format(format).build();
  }

  /** Returns the partition of a row, or null in a table without partitions. */
  private PartitionKey partition(PartitionSpec spec, Schema schema, Record row) {
    if (spec.isUnpartitioned()) return null;
    PartitionKey key = new PartitionKey(spec, schema);
    key.partition(new InternalRecordWrapper(schema.asStruct()).wrap(row));
    return key;
  }

  private EncryptedOutputFile place(Table table, PartitionSpec spec, StructLike partition) {
    OutputFileFactory places = places(table, FileFormat.PARQUET);
    return partition == null ? places.newOutputFile() : places.newOutputFile(spec, partition);
  }

  /** Writes one data file, with the table's schema or an earlier one, as a writer does that began before a change. */
  private String append(Table table, JsonNode rows, int number) throws Exception {
    Schema schema = number < 0 ? table.schema() : table.schemas().get(number);
    List<Record> records = new ArrayList<>();
    rows.forEach(row -> records.add(record(schema.asStruct(), row)));
    PartitionSpec spec = table.spec();
    StructLike partition = partition(spec, table.schema(), records.get(0));
    DataWriter<Record> writer = new GenericFileWriterFactory.Builder(table)
        .dataFileFormat(FileFormat.PARQUET).dataSchema(schema).build()
        .newDataWriter(place(table, spec, partition), spec, partition);
    try (Closeable closed = writer) {
      records.forEach(writer::write);
    }
    table.newAppend().appendFile(writer.toDataFile()).commit();
    return writer.toDataFile().location();
  }

  private DataFile file(Table table, String location) throws Exception {
    try (CloseableIterable<FileScanTask> tasks = table.newScan().planFiles()) {
      for (FileScanTask task : tasks) {
        if (task.file().location().equals(location)) return task.file();
      }
    }
    throw new IllegalArgumentException("no file " + location);
  }

  /** Writes one position delete file for rows of one or more data files of a partition. */
  private void positions(Table table, JsonNode given) throws Exception {
    DataFile first = file(table, given.get("deletes").get(0).get("file").asText());
    PartitionSpec spec = table.specs().get(first.specId());
    StructLike partition = spec.isUnpartitioned() ? null : first.partition();
    PositionDeleteWriter<Record> writer = new GenericFileWriterFactory.Builder(table)
        .deleteFileFormat(FileFormat.PARQUET).build()
        .newPositionDeleteWriter(place(table, spec, partition), spec, partition);
    try (Closeable closed = writer) {
      for (JsonNode one : given.get("deletes")) {
        PositionDelete<Record> delete = PositionDelete.create();
        writer.write(delete.set(one.get("file").asText(), one.get("position").asLong()));
      }
    }
    table.newRowDelta().addDeletes(writer.toDeleteFile()).commit();
  }

  private void vector(Table table, JsonNode given) throws Exception {
    Map<String, DeleteFile> before = new HashMap<>();
    try (CloseableIterable<FileScanTask> tasks = table.newScan().planFiles()) {
      for (FileScanTask task : tasks) {
        task.deletes().stream().filter(d -> d.content() == FileContent.POSITION_DELETES)
            .forEach(d -> before.put(task.file().location(), d));
      }
    }
    BaseDeleteLoader loader = new BaseDeleteLoader(d -> table.io().newInputFile(d.location()));
    DVFileWriter writer = new BaseDVFileWriter(
        places(table, FileFormat.PUFFIN),
        path -> before.containsKey(path) ? loader.loadPositionDeletes(List.of(before.get(path)), path) : null);
    try (Closeable closed = writer) {
      for (JsonNode one : given.get("deletes")) {
        DataFile data = file(table, one.get("file").asText());
        writer.delete(data.location(), one.get("position").asLong(), table.specs().get(data.specId()), data.partition());
      }
    }
    RowDelta delta = table.newRowDelta().validateFromSnapshot(table.currentSnapshot().snapshotId());
    writer.result().deleteFiles().forEach(delta::addDeletes);
    writer.result().rewrittenDeleteFiles().forEach(delta::removeDeletes);
    delta.commit();
  }

  private void equality(Table table, JsonNode given) throws Exception {
    List<String> columns = new ArrayList<>();
    given.get("columns").forEach(column -> columns.add(column.asText()));
    Schema schema = table.schema().select(columns);
    int[] ids = columns.stream().mapToInt(column -> table.schema().findField(column).fieldId()).toArray();
    PartitionSpec spec = table.specs().get(given.path("spec").asInt(table.spec().specId()));
    StructLike partition = spec.isUnpartitioned() ? null
        : partition(spec, table.schema(), record(table.schema().asStruct(), given.get("in")));
    EqualityDeleteWriter<Record> writer = new GenericFileWriterFactory.Builder(table)
        .deleteFileFormat(FileFormat.PARQUET).equalityFieldIds(ids).equalityDeleteRowSchema(schema).build()
        .newEqualityDeleteWriter(place(table, spec, partition), spec, partition);
    try (Closeable closed = writer) {
      for (JsonNode row : given.get("rows")) writer.write(record(schema.asStruct(), row));
    }
    table.newRowDelta().addDeletes(writer.toDeleteFile()).commit();
  }

  private void change(Table table, JsonNode changes) {
    UpdateSchema update = table.updateSchema();
    for (JsonNode one : changes) {
      String column = one.get(1).asText();
      String to = one.path(2).asText();
      switch (one.get(0).asText()) {
        case "rename" -> update.renameColumn(column, to);
        case "drop" -> update.deleteColumn(column);
        case "add" -> update.addColumn(column, Types.fromPrimitiveString(to));
        case "default" -> update.addColumn(column, Types.fromPrimitiveString(to), Expressions.lit(one.get(3).asText()));
        case "widen" -> update.updateColumn(column, Types.fromPrimitiveString(to));
        default -> throw new IllegalArgumentException(one.toString());
      }
    }
    update.commit();
  }

  private ArrayNode read(Table table) throws Exception {
    ArrayNode rows = JSON.createArrayNode();
    try (CloseableIterable<Record> found = IcebergGenerics.read(table).build()) {
      for (Record row : found) {
        ArrayNode values = rows.addArray();
        int columns = table.schema().columns().size();  // the reader adds positions, for deletes
        for (int n = 0; n < columns; n++) values.add(row.get(n) == null ? (String) null : row.get(n).toString());
      }
    }
    return rows;
  }
}
