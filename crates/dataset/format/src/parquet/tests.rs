use std::sync::Arc;

use forebay_core::Kind;
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::*;
use crate::index::{Index, IndexBuilder, Value};
use crate::scan::{ScanOptions, ShardScan};
use crate::shard::Format;

/// A file with row groups of these numbers of rows.
fn file(groups: &[usize]) -> Vec<u8> {
    let schema = "message m { required int64 id; optional double score; required binary name (UTF8); required int32 n (UINT_32); }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut out = Vec::new();
    let mut writer =
        SerializedFileWriter::new(&mut out, schema, Arc::new(WriterProperties::default())).unwrap();
    let mut first = 0_i64;
    for rows in groups {
        let ids: Vec<i64> = (first..first + *rows as i64).collect();
        first += *rows as i64;
        let scores: Vec<f64> = ids.iter().map(|id| *id as f64 / 2.0).collect();
        let names: Vec<ByteArray> = ids
            .iter()
            .map(|id| ByteArray::from(format!("n{id:03}").as_str()))
            .collect();
        let small: Vec<i32> = ids.iter().map(|id| *id as i32).collect();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&ids, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let levels = vec![1; scores.len()];
        column
            .typed::<DoubleType>()
            .write_batch(&scores, Some(&levels), None)
            .unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column
            .typed::<ByteArrayType>()
            .write_batch(&names, None, None)
            .unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column
            .typed::<parquet::data_type::Int32Type>()
            .write_batch(&small, None, None)
            .unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
    out
}

fn record(bytes: &[u8]) -> ShardRecord {
    ShardRecord::new("x.parquet", Format::Parquet, bytes.len() as u64)
}

fn open(shard: ShardIndex) -> Index {
    let mut builder = IndexBuilder::new();
    builder.add(shard).unwrap();
    Index::from_bytes(builder.finish().unwrap()).unwrap()
}

#[test]
fn rows_are_samples_and_column_chunks_are_fields() {
    let bytes = file(&[100, 1, 50]);
    let index = open(index_footer(&bytes, record(&bytes)).unwrap());
    assert_eq!(index.len(), 151);
    assert_eq!(index.head().meta().fields, ["id", "n", "name", "score"]);
    for (number, row) in [(0, 0), (99, 99), (100, 0), (101, 0), (150, 49)] {
        let sample = index.sample(number).unwrap();
        assert_eq!(sample.row_in_run, row);
        let names: Vec<&str> = sample.fields.iter().map(|field| field.name).collect();
        assert_eq!(names, ["id", "score", "name", "n"]);
        // A dictionary page or a data page starts there: a thrift structure, whose first field is an integer.
        let start = usize::try_from(sample.fields[0].offset).unwrap();
        assert_eq!(bytes[start], 0x15);
    }
    let first = index.sample(0).unwrap();
    assert_eq!(first.fields[0].offset, 4);
    assert_eq!(first.fields[1].offset, 4 + first.fields[0].bytes);
    assert_ne!(
        first.fields[0].offset,
        index.sample(100).unwrap().fields[0].offset
    );
}

#[test]
fn bounds_of_row_groups_are_there_for_filters() {
    let bytes = file(&[10, 5]);
    let index = open(index_footer(&bytes, record(&bytes)).unwrap());
    let value = |column: &str, number| index.value(column, number).unwrap();
    assert_eq!(
        (value("min(id)", 9), value("max(id)", 9)),
        (Some(Value::I64(0)), Some(Value::I64(9)))
    );
    assert_eq!(value("min(id)", 10), Some(Value::I64(10)));
    assert_eq!(value("max(score)", 14), Some(Value::F64(7.0)));
    assert_eq!(value("max(name)", 0), Some(Value::Text("n009")));
    // Unsigned numbers are stored as signed ones and are left out.
    assert_eq!(value("min(n)", 0), None);
}

#[test]
fn a_scan_and_a_footer_say_the_same() {
    let bytes = file(&[10, 5]);
    let footer_start = bytes.len() - footer_bytes(&bytes).unwrap();
    let by_footer = index_footer(&bytes[footer_start..], record(&bytes)).unwrap();
    for piece_bytes in [1, 100, bytes.len()] {
        let mut options = ScanOptions::new(Format::Parquet);
        options.with_sha256 = false;
        let mut scan = ShardScan::new(record(&bytes), options);
        bytes
            .chunks(piece_bytes)
            .for_each(|piece| scan.push(piece).unwrap());
        assert_eq!(scan.finish().unwrap(), by_footer);
    }
    assert_eq!(
        open(index_footer(&file(&[]), record(&file(&[]))).unwrap()).len(),
        0
    );
}

#[test]
fn what_is_no_parquet_file_or_a_cut_one_is_refused() {
    let bytes = file(&[10]);
    // Its end alone: what the footer points to is not there.
    let end = &bytes[bytes.len() - footer_bytes(&bytes).unwrap()..];
    assert_eq!(index_footer(end, record(end)).unwrap_err().kind(), Kind::Corrupt);
    assert_eq!(
        index_footer(b"PAR1", record(b"PAR1")).unwrap_err().kind(),
        Kind::InvalidInput
    );
    assert_eq!(
        footer_bytes(b"\x01\0\0\0PARE").unwrap_err().kind(),
        Kind::Unsupported
    );
    assert_eq!(
        footer_bytes(b"\xff\xff\xff\xffPAR1").unwrap_err().kind(),
        Kind::Unsupported
    );
    let cut = &bytes[..bytes.len() - 1];
    assert_eq!(
        index_footer(cut, record(cut)).unwrap_err().kind(),
        Kind::InvalidInput
    );
    let mut scan = ShardScan::new(record(&bytes), ScanOptions::new(Format::Parquet));
    assert_eq!(
        scan.push(b"PAR2 and so on").unwrap_err().kind(),
        Kind::InvalidInput
    );
}

#[test]
fn a_page_index_that_claims_more_pages_than_it_has_takes_no_memory() {
    let bytes = file(&[10]);
    let file = ParquetFile::parse(&bytes, bytes.len() as u64).unwrap();
    // A list of two thousand million structures, in a few bytes.
    let index = [0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 7, 0, 0, 0, 0, 0];
    assert_eq!(
        file.pages_of_index(0, 0, &index).unwrap_err().kind(),
        Kind::Corrupt
    );
    assert_eq!(file.page_bounds(0, 0, &index).unwrap_err().kind(), Kind::Corrupt);
}

#[test]
fn a_codec_that_is_not_read_is_not_damage() {
    let mut bytes = file(&[10]);
    // The name of the first column ends its path; behind it stands the codec: none. 8 is Brotli.
    let place = bytes
        .windows(5)
        .rposition(|part| part == b"id\x15\0\x16")
        .unwrap();
    bytes[place + 3] = 8;
    let file = ParquetFile::parse(&bytes, bytes.len() as u64).unwrap();
    let range = |range: std::ops::Range<u64>| range.start as usize..range.end as usize;
    let chunk = file.chunk_range(0, 0).unwrap();
    let pages = bytes::Bytes::copy_from_slice(&bytes[range(chunk.clone())]);
    let found = file.pages_of_chunk(0, 0, pages.clone());
    assert_eq!(found.err().unwrap().kind(), Kind::Unsupported);
    let index = file.page_index_range(0, 0).unwrap().unwrap();
    let table = file.pages_of_index(0, 0, &bytes[range(index)]).unwrap();
    let found = decode(&file, (0, 0), &table, 0, Pieces(vec![(chunk.start, pages)]));
    assert_eq!(found.err().unwrap().kind(), Kind::Unsupported);
}
