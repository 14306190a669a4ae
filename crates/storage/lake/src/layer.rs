//! Decorators of a lake, and the retry policy that back-ends and the scheduler share.
//!
//! A layer is a [`Lake`](crate::Lake) around another one: it counts (`counted`), slows down (`throttled`),
//! adds a key prefix (`prefixed`), refuses keys that the store would mix up (`clean_keys`) or fails on
//! purpose (`faulty`, for tests). Layers stack in any order.

pub(crate) mod clean_keys;
pub(crate) mod counted;
pub(crate) mod faulty;
pub(crate) mod prefixed;
pub(crate) mod retry;
pub(crate) mod throttled;
