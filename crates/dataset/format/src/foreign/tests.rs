use super::*;

type Found = Vec<(Option<String>, Vec<(String, u64, u64)>)>;

fn collect(read: impl Fn(&[u8], &mut dyn SampleSink) -> Result<()>, document: &str) -> Result<Found> {
    let mut found = Vec::new();
    let mut sink = |sample: &SampleRecord<'_>| {
        let key = sample.key.map(|key| String::from_utf8(key.to_vec()).unwrap());
        let fields = sample.fields.iter();
        assert!(sample.fields.iter().all(|field| field.crc32c.is_none()));
        let fields = fields.map(|field| (field.name.to_owned(), field.offset, field.bytes));
        found.push((key, fields.collect()));
        Ok(())
    };
    read(document.as_bytes(), &mut sink)?;
    Ok(found)
}

#[test]
fn wids_lists_shards() {
    let document = br#"{"wids_version": 1, "name": "x", "shardlist": [
        {"url": "a-0.tar", "nsamples": 3, "filesize": 10240, "md5sum": "?"}, {"url": "a-1.tar", "nsamples": 0}]}"#;
    let shards = wids(document).unwrap();
    assert_eq!(
        (shards[0].url.as_str(), shards[0].samples, shards[0].bytes),
        ("a-0.tar", 3, Some(10240))
    );
    assert_eq!(shards[1].bytes, None);
    let newer = br#"{"wids_version": 2, "shardlist": []}"#;
    assert_eq!(wids(newer).unwrap_err().kind(), Kind::Unsupported);
    assert_eq!(wids(b"[]").unwrap_err().kind(), Kind::Corrupt);
}

#[test]
fn dali_gives_places_in_a_tar() {
    let named = "v1.2 2\njpg 512 100 a/0.jpg cls 1536 1 a/0.cls\njpg 2560 7 a/1.jpg\n";
    let found = collect(dali_tar, named).unwrap();
    let field = |name: &str, offset, bytes| (name.to_owned(), offset, bytes);
    assert_eq!(
        found,
        [
            (
                Some("a/0".into()),
                vec![field("jpg", 512, 100), field("cls", 1536, 1)]
            ),
            (Some("a/1".into()), vec![field("jpg", 2560, 7)]),
        ]
    );
    let unnamed = collect(dali_tar, "v1.1 1\njpg 512 100 cls 1536 1\n").unwrap();
    assert_eq!(
        unnamed,
        [(None, vec![field("jpg", 512, 100), field("cls", 1536, 1)])]
    );
}

#[test]
fn wrong_dali_indexes_are_refused() {
    for document in [
        "",
        "v1.2",
        "v1.2 x\n",
        "v1.2 2\njpg 512 1 a.jpg\n",
        "v1.2 1\njpg 513 1 a.jpg\n",
        "v1.2 1\njpg 512 -1 a.jpg\n",
        "v1.2 1\njpg 512 1\n",
        "v1.2 1\njpg 512 18446744073709551615 a.jpg\n",
        "v1.2 1\njpg 512 1 a.jpg jpg 1024 1 a.jpg\n",
        "v1.2 1\n\n",
    ] {
        assert_eq!(
            collect(dali_tar, document).unwrap_err().kind(),
            Kind::Corrupt,
            "{document:?}"
        );
    }
    assert_eq!(collect(dali_tar, "v9 0\n").unwrap_err().kind(), Kind::Unsupported);
    for document in [
        "0 15\n",
        "0 20\n21 20\n",
        "0\n",
        "x y\n",
        "0 18446744073709551615\n18446744073709551615 16\n",
    ] {
        assert_eq!(
            collect(dali_tfrecord, document).unwrap_err().kind(),
            Kind::Corrupt,
            "{document:?}"
        );
    }
}

#[test]
fn dali_gives_places_of_records() {
    let found = collect(dali_tfrecord, "0 21\n21 16\n").unwrap();
    let places: Vec<_> = found
        .iter()
        .map(|(_, fields)| (fields[0].1, fields[0].2))
        .collect();
    assert_eq!(places, [(12, 5), (33, 0)]);
}
