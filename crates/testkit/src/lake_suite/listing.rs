//! Checks of listings: content and order of a page.

use forebay_lake::ListOptions;

use super::{LakeFixture, Listed};

/// Names whose order as paths differs from their order as keys.
const NAMES: [&str; 10] = [
    "a", "a-b", "a.c", "a0", "b!/x", "b/x", "b/x-y", "b/y/z", "b0", "c/d/e/f",
];

async fn put_names(fixture: &LakeFixture) {
    // Backwards, so that no store lists them in the order in which they came.
    for name in NAMES.into_iter().rev() {
        fixture.put(name, name).await;
    }
}

fn with_prefix(prefix: &str) -> ListOptions {
    ListOptions {
        prefix: prefix.to_owned(),
        ..ListOptions::default()
    }
}

fn with_delimiter(prefix: &str, delimiter: &str) -> ListOptions {
    ListOptions {
        delimiter: Some(delimiter.to_owned()),
        ..with_prefix(prefix)
    }
}

fn after(start: &str, delimiter: Option<&str>) -> ListOptions {
    ListOptions {
        start_after: Some(start.to_owned()),
        delimiter: delimiter.map(str::to_owned),
        ..ListOptions::default()
    }
}

fn listed(objects: &[&str], prefixes: &[&str]) -> Listed {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    Listed {
        objects: owned(objects),
        prefixes: owned(prefixes),
        next: None,
    }
}

pub(super) async fn keys_come_in_byte_order(fixture: LakeFixture) {
    put_names(&fixture).await;
    let mut sorted = NAMES;
    sorted.sort_unstable();
    assert_eq!(fixture.list(ListOptions::default()).await, listed(&sorted, &[]));
}

pub(super) async fn listed_object_equals_its_head(fixture: LakeFixture) {
    fixture.put("dir/k", "twelve bytes").await;
    let options = ListOptions {
        prefix: fixture.prefix.clone(),
        ..ListOptions::default()
    };
    let page = fixture.lake.list(options).await.unwrap();
    let head = fixture.lake.head(&fixture.key("dir/k")).await.unwrap();
    assert_eq!(page.objects.len(), 1);
    let object = &page.objects[0];
    assert_eq!(
        (&object.key, object.bytes, &object.version),
        (&head.key, head.bytes, &head.version)
    );
    let seconds = |time: std::time::SystemTime| time.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert_eq!(seconds(object.modified), seconds(head.modified));
}

pub(super) async fn nothing_lists_as_nothing(fixture: LakeFixture) {
    assert_eq!(fixture.list(ListOptions::default()).await, listed(&[], &[]));
    put_names(&fixture).await;
    for prefix in ["z", "a-b/", "b/x/", "c/d/e/f/", "b//", "../", "c/e", "./"] {
        assert_eq!(
            fixture.list(with_prefix(prefix)).await,
            listed(&[], &[]),
            "prefix {prefix}"
        );
        assert_eq!(
            fixture.list(with_delimiter(prefix, "/")).await,
            listed(&[], &[]),
            "prefix {prefix}"
        );
    }
}

pub(super) async fn prefix_may_end_inside_a_name(fixture: LakeFixture) {
    put_names(&fixture).await;
    assert_eq!(
        fixture.list(with_prefix("a")).await,
        listed(&["a", "a-b", "a.c", "a0"], &[])
    );
    assert_eq!(
        fixture.list(with_prefix("b/x")).await,
        listed(&["b/x", "b/x-y"], &[])
    );
    assert_eq!(
        fixture.list(with_prefix("c/d/e/f")).await,
        listed(&["c/d/e/f"], &[])
    );
    assert_eq!(fixture.list(with_prefix("c/d")).await, listed(&["c/d/e/f"], &[]));
}

pub(super) async fn delimiter_groups_below_the_prefix(fixture: LakeFixture) {
    put_names(&fixture).await;
    let page = fixture.list(with_delimiter("", "/")).await;
    assert_eq!(
        page,
        listed(&["a", "a-b", "a.c", "a0", "b0"], &["b!/", "b/", "c/"])
    );
    assert_eq!(
        fixture.list(with_delimiter("b", "/")).await,
        listed(&["b0"], &["b!/", "b/"])
    );
}

pub(super) async fn delimiter_at_the_end_of_the_prefix(fixture: LakeFixture) {
    put_names(&fixture).await;
    assert_eq!(
        fixture.list(with_delimiter("b/", "/")).await,
        listed(&["b/x", "b/x-y"], &["b/y/"])
    );
    assert_eq!(
        fixture.list(with_delimiter("c/", "/")).await,
        listed(&[], &["c/d/"])
    );
    assert_eq!(
        fixture.list(with_delimiter("c/d/e/", "/")).await,
        listed(&["c/d/e/f"], &[])
    );
}

pub(super) async fn other_delimiters_group(fixture: LakeFixture) {
    if !fixture.traits.any_delimiter {
        return;
    }
    put_names(&fixture).await;
    let page = fixture.list(with_delimiter("", "-")).await;
    assert_eq!(
        page,
        listed(
            &["a", "a.c", "a0", "b!/x", "b/x", "b/y/z", "b0", "c/d/e/f"],
            &["a-", "b/x-"]
        )
    );
    assert_eq!(
        fixture.list(with_delimiter("c", "d/e")).await,
        listed(&[], &["c/d/e"])
    );
}

pub(super) async fn start_after_is_exclusive(fixture: LakeFixture) {
    put_names(&fixture).await;
    assert_eq!(
        fixture.list(after("b/x", None)).await,
        listed(&["b/x-y", "b/y/z", "b0", "c/d/e/f"], &[])
    );
    assert_eq!(
        fixture.list(after("b/y", None)).await,
        listed(&["b/y/z", "b0", "c/d/e/f"], &[])
    );
    assert_eq!(
        fixture.list(after("b/y/z", None)).await,
        listed(&["b0", "c/d/e/f"], &[])
    );
    assert_eq!(fixture.list(after("zzz", None)).await, listed(&[], &[]));
    let below = ListOptions {
        start_after: Some("b/x".to_owned()),
        ..with_prefix("b/")
    };
    assert_eq!(fixture.list(below).await, listed(&["b/x-y", "b/y/z"], &[]));
}

pub(super) async fn start_after_a_common_prefix_skips_it(fixture: LakeFixture) {
    put_names(&fixture).await;
    assert_eq!(
        fixture.list(after("b!/", Some("/"))).await,
        listed(&["b0"], &["b/", "c/"])
    );
    assert_eq!(
        fixture.list(after("b/", Some("/"))).await,
        listed(&["b0"], &["c/"])
    );
    assert_eq!(
        fixture.list(after("a0", Some("/"))).await,
        listed(&["b0"], &["b!/", "b/", "c/"])
    );
}

pub(super) async fn deleted_objects_leave_the_listing(fixture: LakeFixture) {
    put_names(&fixture).await;
    if !fixture.traits.plain_keys {
        // Emptied folders may stay for a while, objects may not.
        fixture.lake.delete(&fixture.key("b/x")).await.unwrap();
        assert!(
            !fixture
                .list(ListOptions::default())
                .await
                .objects
                .contains(&"b/x".to_owned())
        );
        return;
    }
    for name in ["b/x", "b/x-y", "b/y/z", "c/d/e/f"] {
        fixture.lake.delete(&fixture.key(name)).await.unwrap();
    }
    assert_eq!(
        fixture.list(with_delimiter("", "/")).await,
        listed(&["a", "a-b", "a.c", "a0", "b0"], &["b!/"])
    );
}
