use bytes::Bytes;
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::*;

/// A file of one column: what `write` puts into it.
fn file(schema: &str, write: impl FnOnce(&mut parquet::file::writer::SerializedColumnWriter<'_>)) -> Vec<u8> {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = WriterProperties::builder()
        .set_dictionary_page_size_limit(1 << 30)
        .set_statistics_enabled(EnabledStatistics::None)
        .build();
    let mut out = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut out, schema, Arc::new(properties)).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    write(&mut column);
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    out
}

/// A file of ten rows, each a list of three numbers.
fn lists() -> Vec<u8> {
    let schema =
        "message m { required group tokens (LIST) { repeated group list { required int64 element; } } }";
    file(schema, |column| {
        let values: Vec<i64> = (0..30).collect();
        let levels: Vec<i16> = (0..30).map(|number| i16::from(number % 3 != 0)).collect();
        column
            .typed::<Int64Type>()
            .write_batch(&values, Some(&[1; 30]), Some(&levels))
            .unwrap();
    })
}

/// Decodes the only page after its table was changed.
fn decoded(bytes: &[u8], change: impl FnOnce(&mut PageTable)) -> Result<Slab> {
    let file = ParquetFile::parse(bytes, bytes.len() as u64)?;
    let chunk = file.chunk_range(0, 0)?;
    let pages = Bytes::copy_from_slice(&bytes[chunk.start as usize..chunk.end as usize]);
    let mut table = file.pages_of_chunk(0, 0, pages.clone())?;
    change(&mut table);
    decode(&file, (0, 0), &table, 0, Pieces(vec![(chunk.start, pages)]))
}

#[test]
fn rows_that_a_page_has_and_the_row_group_has_not_are_damage() {
    let bytes = lists();
    let slab = decoded(&bytes, |_| {}).unwrap();
    assert!(slab.row(9).is_ok());
    for rows in [9, 1] {
        let error = decoded(&bytes, |table| table.pages[0].1.end = rows).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    }
    let error = decoded(&bytes, |table| table.pages[0].1.end = 11).unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
}

#[test]
fn a_page_that_decodes_to_too_much_is_not_damaged() {
    // A value of 64 MiB in the dictionary, named by nine rows.
    let bytes = file("message m { required binary data; }", |column| {
        let value = ByteArray::from(vec![7; 64 << 20]);
        column
            .typed::<ByteArrayType>()
            .write_batch(&vec![value; 9], None, None)
            .unwrap();
    });
    assert!(bytes.len() < 65 << 20, "it has a dictionary");
    let error = decoded(&bytes, |_| {}).unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported, "{error}");
    assert!(error.to_string().contains("smaller row groups"), "{error}");
}
