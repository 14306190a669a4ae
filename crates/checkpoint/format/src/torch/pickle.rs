//! A writer of pickles: the few opcodes that are needed, nothing remembered, nothing read.

/// A pickle that is being written. Every call adds one value, or makes one of the last two.
pub(super) struct Pickle(Vec<u8>);

impl Pickle {
    pub(super) fn new(protocol: u8) -> Self {
        Self(vec![0x80, protocol])
    }

    pub(super) fn end(mut self) -> Vec<u8> {
        self.0.push(b'.');
        self.0
    }

    pub(super) fn none(&mut self) -> &mut Self {
        self.op(b'N')
    }

    pub(super) fn boolean(&mut self, value: bool) -> &mut Self {
        self.op(if value { 0x88 } else { 0x89 })
    }

    pub(super) fn integer(&mut self, value: u64) -> &mut Self {
        if let Ok(small) = i32::try_from(value) {
            self.op(b'J');
            self.0.extend_from_slice(&small.to_le_bytes());
            return self;
        }
        // Nine bytes, so that the sign is never one.
        self.op(0x8a).op(9);
        self.0.extend_from_slice(&value.to_le_bytes());
        self.op(0)
    }

    pub(super) fn negative(&mut self, value: i64) -> &mut Self {
        self.op(0x8a).op(8);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(super) fn float(&mut self, value: f64) -> &mut Self {
        self.op(b'G');
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// At most 4 GiB, which names and values in a manifest are.
    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        self.op(b'X').sized(text.as_bytes())
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.op(b'B').sized(bytes)
    }

    /// A class or function by its name.
    pub(super) fn global(&mut self, module: &str, name: &str) -> &mut Self {
        self.op(b'c');
        self.0.extend_from_slice(module.as_bytes());
        self.op(b'\n');
        self.0.extend_from_slice(name.as_bytes());
        self.op(b'\n')
    }

    pub(super) fn tuple(&mut self, items: impl FnOnce(&mut Self)) -> &mut Self {
        self.op(b'(');
        items(self);
        self.op(b't')
    }

    pub(super) fn list(&mut self, items: impl FnOnce(&mut Self)) -> &mut Self {
        self.op(b']').op(b'(');
        items(self);
        self.op(b'e')
    }

    /// Pairs, one value after the other.
    pub(super) fn dict(&mut self, pairs: impl FnOnce(&mut Self)) -> &mut Self {
        self.op(b'}').op(b'(');
        pairs(self);
        self.op(b'u')
    }

    /// Calls what comes before the last tuple with it.
    pub(super) fn call(&mut self) -> &mut Self {
        self.op(b'R')
    }

    /// An object of the class before the last tuple, without calling `__init__`.
    pub(super) fn new_object(&mut self) -> &mut Self {
        self.op(0x81)
    }

    /// Gives the last value to the object before it as its state.
    pub(super) fn build(&mut self) -> &mut Self {
        self.op(b'b')
    }

    /// Returns what the loader finds under the last value.
    pub(super) fn persistent(&mut self) -> &mut Self {
        self.op(b'Q')
    }

    fn op(&mut self, byte: u8) -> &mut Self {
        self.0.push(byte);
        self
    }

    fn sized(&mut self, bytes: &[u8]) -> &mut Self {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.0.extend_from_slice(&length.to_le_bytes());
        self.0.extend_from_slice(&bytes[..length as usize]);
        self
    }
}
