//! Random operations on a lake and on the reference in memory; after each, both must say the same.
//!
//! The seed fixes the whole run, so a failure names the seed and the step to go back to. Keys come from a
//! small pool, so that operations meet each other; none of them is the folder of another, because a folder
//! lake cannot hold both.

use std::sync::Arc;

use bytes::Bytes;
use fastrand::Rng;
use forebay_core::{ByteRange, Kind, ObjectKey, Result};
use forebay_lake::{
    Attributes, CopyOptions, GetOptions, GetRange, Lake, ListOptions, MemoryLake, ObjectMeta, PutMode,
    PutOptions, PutReceipt,
};
use futures::StreamExt;

use crate::{patterned, read_all};

const POOL: [&str; 14] = [
    "a", "a-b", "a.b", "a0", "b/x", "b/x-y", "b/y/z", "b-c/x", "b!/x", "c/d/e/f", "c/d/e/g", "d/", "d/k",
    "ü/ß",
];

/// Runs `steps` random operations on `lake`, which must be empty, and on a [`MemoryLake`].
///
/// Both must give the same bytes, attributes, versions, listings and kinds of errors, so `lake` must have
/// exact ETags. Panics at the first difference.
pub async fn lake_model(lake: Arc<dyn Lake>, seed: u64, steps: usize) {
    let mut model = Model {
        lake,
        reference: MemoryLake::new(),
        random: Rng::with_seed(seed),
        at: String::new(),
    };
    for step in 0..steps {
        model.at = format!("seed {seed}, step {step}");
        model.step().await;
    }
    model.at = format!("seed {seed}, at the end");
    model.compare_all().await;
}

struct Model {
    lake: Arc<dyn Lake>,
    reference: MemoryLake,
    random: Rng,
    at: String,
}

impl Model {
    async fn step(&mut self) {
        match self.random.u32(..100) {
            0..30 => self.put().await,
            30..45 => self.delete().await,
            45..55 => self.copy().await,
            55..65 => self.upload().await,
            65..85 => self.get().await,
            _ => self.list().await,
        }
    }

    fn key(&mut self) -> ObjectKey {
        ObjectKey::new(POOL[self.random.usize(..POOL.len())]).unwrap()
    }

    fn body(&mut self) -> Bytes {
        let bytes = match self.random.u32(..10) {
            0 => 0,
            1 => self.random.usize(..3 << 20),
            _ => self.random.usize(..2000),
        };
        // Few seeds, so that the same bytes come again under the same key.
        patterned(bytes, self.random.u64(..4))
    }

    fn attributes(&mut self) -> Attributes {
        let mut attributes = Attributes::default();
        if self.random.bool() {
            attributes.content_type = Some(format!("text/{}", self.random.u32(..3)));
            attributes
                .user
                .insert("n".to_owned(), self.random.u32(..3).to_string());
        }
        attributes
    }

    /// A mode with a token that is right, out of date, or of another object.
    async fn mode(&mut self, key: &ObjectKey) -> PutMode {
        let named = if self.random.bool() {
            key.clone()
        } else {
            self.key()
        };
        match self.random.u32(..4) {
            0 => PutMode::Create,
            1 => match self.reference.head(&named).await {
                Ok(meta) => PutMode::Update(meta.token),
                Err(_) => PutMode::Overwrite,
            },
            _ => PutMode::Overwrite,
        }
    }

    async fn put(&mut self) {
        let (key, body) = (self.key(), self.body());
        let options = PutOptions {
            mode: self.mode(&key).await,
            attributes: self.attributes(),
            ..PutOptions::default()
        };
        let real = match self.random.bool() {
            true => self.lake.put(&key, body.clone(), options.clone()).await,
            false => self.write_in_pieces(&key, &body, options.clone()).await,
        };
        let expected = self.reference.put(&key, body, options).await;
        self.same("put", &key, &receipt(real), &receipt(expected));
    }

    async fn write_in_pieces(
        &mut self,
        key: &ObjectKey,
        body: &Bytes,
        options: PutOptions,
    ) -> Result<PutReceipt> {
        let mut writer = self.lake.writer(key, PutOptions::default(), None).await?;
        let mut rest = body.clone();
        while !rest.is_empty() {
            let bytes = self.random.usize(1..=rest.len());
            writer.write(rest.split_to(bytes)).await?;
        }
        writer.finish(options).await
    }

    async fn delete(&mut self) {
        let key = self.key();
        let (real, expected) = (self.lake.delete(&key).await, self.reference.delete(&key).await);
        let kind = |error: forebay_core::Error| error.kind();
        self.same("delete", &key, &real.map_err(kind), &expected.map_err(kind));
    }

    async fn copy(&mut self) {
        let (from, to) = (self.key(), self.key());
        let attributes = if self.random.bool() {
            Some(self.attributes())
        } else {
            None
        };
        let pinned = if self.random.bool() {
            from.clone()
        } else {
            self.key()
        };
        let if_match = match self.random.u32(..3) {
            0 => self.reference.head(&pinned).await.ok().map(|meta| meta.version),
            _ => None,
        };
        let options = CopyOptions { attributes, if_match };
        let real = self.lake.copy(&from, &to, options.clone()).await;
        let expected = self.reference.copy(&from, &to, options).await;
        self.same("copy", &from, &receipt(real), &receipt(expected));
    }

    async fn upload(&mut self) {
        let (key, attributes) = (self.key(), self.attributes());
        let mode = self.mode(&key).await;
        let bodies: Vec<Bytes> = (0..self.random.usize(1..4)).map(|_| self.body()).collect();
        let is_aborted = self.random.u32(..4) == 0;
        let mut outcomes = Vec::new();
        for lake in [&*self.lake, &self.reference] {
            let options = PutOptions {
                mode: mode.clone(),
                ..PutOptions::default()
            };
            let upload = lake.start_upload(&key, attributes.clone()).await.unwrap();
            let mut parts = Vec::new();
            for (index, body) in bodies.iter().enumerate() {
                let stream = futures::stream::iter([Ok(body.clone())]).boxed();
                let number = 3 * index as u16 + 1;
                parts.push(
                    lake.upload_part(&key, &upload, number, body.len() as u64, stream)
                        .await
                        .unwrap(),
                );
            }
            if is_aborted {
                lake.abort_upload(&key, &upload).await.unwrap();
            }
            outcomes.push((
                receipt(lake.complete_upload(&key, &upload, &parts, options).await),
                parts,
            ));
            lake.abort_upload(&key, &upload).await.unwrap();
        }
        let expected = outcomes.pop();
        self.same("upload", &key, &outcomes.pop(), &expected);
    }

    async fn get(&mut self) {
        let key = self.key();
        let range = match self.random.u32(..5) {
            0 => Some(GetRange::From(self.random.u64(..2500))),
            1 => Some(GetRange::Last(self.random.u64(..2500))),
            2 => {
                let start = self.random.u64(..2500);
                Some(GetRange::Bounded(
                    ByteRange::new(start, start + self.random.u64(1..1000)).unwrap(),
                ))
            }
            _ => None,
        };
        let (real, expected) = (
            self.read(&*self.lake, &key, range),
            self.read(&self.reference, &key, range),
        );
        let (real, expected) = (real.await, expected.await);
        self.same("get", &key, &real, &expected);
    }

    async fn read(
        &self,
        lake: &dyn Lake,
        key: &ObjectKey,
        range: Option<GetRange>,
    ) -> Result<(u64, Bytes, Described), Kind> {
        let read = async {
            let result = lake
                .get(
                    key,
                    GetOptions {
                        range,
                        if_match: None,
                    },
                )
                .await?;
            let described = describe(result.meta);
            Ok((result.start, read_all(result.body).await?, described))
        };
        read.await.map_err(|error: forebay_core::Error| error.kind())
    }

    async fn list(&mut self) {
        let cut = |random: &mut Rng| {
            let name = POOL[random.usize(..POOL.len())];
            let ends: Vec<usize> = (0..=name.len())
                .filter(|end| name.is_char_boundary(*end))
                .collect();
            name[..ends[random.usize(..ends.len())]].to_owned()
        };
        let prefix = if self.random.bool() {
            cut(&mut self.random)
        } else {
            String::new()
        };
        let start_after = if self.random.bool() {
            Some(cut(&mut self.random))
        } else {
            None
        };
        let delimiter = [None, Some("/"), Some("/"), Some("-"), Some("x")][self.random.usize(..5)];
        let limit = self.random.usize(..6);
        let options = ListOptions {
            prefix,
            start_after,
            delimiter: delimiter.map(str::to_owned),
            limit,
        };
        self.compare_lists(options).await;
    }

    async fn compare_lists(&self, options: ListOptions) {
        let real = self.lake.list(options.clone()).await.unwrap();
        let expected = self.reference.list(options.clone()).await.unwrap();
        let names = |page: &forebay_lake::ListPage| {
            let objects = page
                .objects
                .iter()
                .map(|object| (object.key.clone(), object.bytes, object.version.clone()));
            (
                objects.collect::<Vec<_>>(),
                page.prefixes.clone(),
                page.next.clone(),
            )
        };
        assert_eq!(
            names(&real),
            names(&expected),
            "{}: list of {options:?} on {}",
            self.at,
            self.lake.url()
        );
    }

    /// Every key, every byte.
    async fn compare_all(&self) {
        self.compare_lists(ListOptions::default()).await;
        for name in POOL {
            let key = ObjectKey::new(name).unwrap();
            let real = self.read(&*self.lake, &key, None).await;
            let expected = self.read(&self.reference, &key, None).await;
            self.same("get", &key, &real, &expected);
        }
    }

    fn same<T: PartialEq + std::fmt::Debug>(&self, what: &str, key: &ObjectKey, real: &T, expected: &T) {
        if real == expected {
            return;
        }
        let short = |value: &T| format!("{value:?}").chars().take(600).collect::<String>();
        panic!(
            "{}: {what} of {key} on {} gave\n{}\nthe reference says\n{}",
            self.at,
            self.lake.url(),
            short(real),
            short(expected)
        );
    }
}

/// Metadata of an object that must be equal: all but the time.
type Described = (u64, forebay_core::Version, Attributes);

fn describe(meta: ObjectMeta) -> Described {
    (meta.bytes, meta.version, meta.attributes)
}

fn receipt(result: Result<PutReceipt>) -> Result<forebay_core::Version, Kind> {
    result
        .map(|receipt| receipt.version)
        .map_err(|error| error.kind())
}
