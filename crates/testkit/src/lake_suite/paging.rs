//! Pages that add up: every name once, in order, whatever the size of the pages.

use forebay_lake::ListOptions;
use futures::future::join_all;

use super::LakeFixture;

const NAMES: usize = 23;

async fn put_names(fixture: &LakeFixture) -> Vec<String> {
    let mut names: Vec<String> = (0..NAMES)
        .map(|index| match index % 3 {
            0 => format!("top-{index:02}"),
            1 => format!("dir-{:02}/k{index:02}", index / 6),
            _ => format!("dir-{:02}/sub/k{index:02}", index / 6),
        })
        .collect();
    join_all(names.iter().map(|name| fixture.put(name, "x"))).await;
    names.sort();
    names
}

/// All names in the order of the pages; panics if a page is too long or the listing does not move on.
async fn all_pages(fixture: &LakeFixture, delimiter: Option<&str>, limit: usize) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut start_after = None;
    for _ in 0..=2 * NAMES {
        let delimiter = delimiter.map(str::to_owned);
        let page = fixture
            .list(ListOptions {
                delimiter,
                limit,
                start_after,
                ..ListOptions::default()
            })
            .await;
        let mut on_page = [page.objects, page.prefixes].concat();
        on_page.sort();
        assert!(
            on_page.len() <= limit,
            "a page of {} for limit {limit}",
            on_page.len()
        );
        names.extend(on_page);
        match page.next {
            None => return names,
            next => start_after = next,
        }
    }
    panic!("the listing does not end with limit {limit}");
}

pub(super) async fn pages_of_every_size_add_up(fixture: LakeFixture) {
    let names = put_names(&fixture).await;
    for limit in 1..=NAMES + 1 {
        assert_eq!(all_pages(&fixture, None, limit).await, names, "limit {limit}");
    }
}

pub(super) async fn pages_with_a_delimiter_add_up(fixture: LakeFixture) {
    let names = put_names(&fixture).await;
    let mut groups: Vec<String> = names
        .iter()
        .map(|name| {
            name.split_once('/')
                .map_or(name.clone(), |(group, _)| format!("{group}/"))
        })
        .collect();
    groups.dedup();
    for limit in 1..=groups.len() + 1 {
        assert_eq!(
            all_pages(&fixture, Some("/"), limit).await,
            groups,
            "limit {limit}"
        );
    }
}

pub(super) async fn last_page_has_no_next(fixture: LakeFixture) {
    let names = put_names(&fixture).await;
    let page = fixture
        .list(ListOptions {
            limit: names.len() + 1,
            ..ListOptions::default()
        })
        .await;
    assert_eq!((page.objects.len(), page.next), (names.len(), None));
    let page = fixture
        .list(ListOptions {
            limit: names.len() - 1,
            ..ListOptions::default()
        })
        .await;
    assert!(page.next.is_some(), "one name is left, so there is a next page");
}
