use forebay_core::Kind;

use super::*;
use crate::index::{Index, IndexBuilder};

fn object<'a>(name: &'a str, bytes: u64) -> RawObject<'a> {
    RawObject {
        name,
        bytes,
        version: "v",
        crc32c: None,
    }
}

fn index(builder: RawBuilder) -> Index {
    let mut joined = IndexBuilder::new();
    joined.add(builder.finish().unwrap()).unwrap();
    Index::from_bytes(joined.finish().unwrap()).unwrap()
}

#[test]
fn every_object_is_a_sample_with_the_folder_as_label() {
    let mut builder = RawBuilder::new("train/", Labels::Folder);
    for (name, bytes) in [("cat/1.jpg", 10), ("dog/x/2.jpg", 0), ("3.jpg", 7)] {
        assert!(builder.object(&object(name, bytes)).unwrap());
    }
    let index = index(builder);
    let labels = ["cat", "x", "train"];
    for (number, label) in (0..).zip(labels) {
        assert_eq!(
            index.value(LABEL_COLUMN, number).unwrap(),
            Some(Value::Text(label))
        );
        assert_eq!(
            index.value(VERSION_COLUMN, number).unwrap(),
            Some(Value::Text("v"))
        );
    }
    let sample = index.sample(0).unwrap();
    assert_eq!(sample.key, Some(b"cat/1.jpg".as_slice()));
    assert_eq!(
        sample.field(FIELD).map(|field| (field.offset, field.bytes)),
        Some((0, 10))
    );
    assert_eq!(index.shard(0).unwrap().record().layout, Layout::ObjectPerSample);
    let mut top = RawBuilder::new("", Labels::Folder);
    assert_eq!(
        top.object(&object("1.jpg", 1)).unwrap_err().kind(),
        Kind::InvalidInput
    );
}

#[test]
fn a_manifest_chooses_objects_and_labels_them() {
    let manifest = Manifest::csv("path,label\na.jpg,cat\r\n\"b,\"\"1\"\".jpg\",\"a dog\"\n\n").unwrap();
    let mut builder = RawBuilder::new("x/", Labels::Manifest(manifest.clone()));
    for (name, is_taken) in [("a.jpg", true), ("b,\"1\".jpg", true), ("c.jpg", false)] {
        assert_eq!(builder.object(&object(name, 1)).unwrap(), is_taken);
    }
    let index = index(builder);
    assert_eq!(index.len(), 2);
    assert_eq!(index.value(LABEL_COLUMN, 1).unwrap(), Some(Value::Text("a dog")));
    let error = RawBuilder::new("x/", Labels::Manifest(manifest))
        .finish()
        .unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(error.to_string().contains("missing: 2"), "{error}");
}

#[test]
fn csv_and_json_lines_say_the_same() {
    let csv = Manifest::csv("a.jpg,1\nb.jpg,true").unwrap();
    let jsonl =
        Manifest::jsonl("{\"path\":\"a.jpg\",\"label\":1}\n\n{\"label\":true,\"path\":\"b.jpg\"}\n").unwrap();
    assert_eq!(csv, jsonl);
}

#[test]
fn wrong_manifests_are_refused_with_the_line() {
    for text in ["a,1\nb\n", "a,1\n\"b,2", "a,1\na,2"] {
        let error = Manifest::csv(text).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidInput);
        assert!(error.to_string().contains("row: 2"), "{error}");
    }
    for text in ["{\"path\":\"a\"}", "[1]", "{\"path\":\"a\",\"label\":[1]}"] {
        assert_eq!(
            Manifest::jsonl(text).unwrap_err().kind(),
            Kind::InvalidInput,
            "{text}"
        );
    }
}
