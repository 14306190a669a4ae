//! JSON as a tree that Python's own objects are made of later, without parsing again.
//!
//! Python's `json` takes more than JSON: `NaN`, whole numbers of any size, halves of surrogate pairs, UTF-16.
//! Such a document is left to it. Why a parser of our own: the one in the tree rounds some numbers in their
//! last bit unless a feature is on that would change it for every crate.

use forebay_core::{Error, Kind, Result};

/// Lists and objects inside of each other.
const DEPTH_MAX: usize = 256;

/// A document.
#[derive(Debug, Clone, PartialEq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true`, `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A whole number above those.
    Uint(u64),
    /// A number.
    Float(f64),
    /// Text.
    Text(String),
    /// `[…]`.
    List(Vec<Self>),
    /// `{…}`, in its order; of equal names the last counts.
    Object(Vec<(String, Self)>),
}

impl Json {
    /// Reads a document; `None` if only Python can.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Self>> {
        let is_marked = bytes.starts_with(&[0xef, 0xbb, 0xbf]) || bytes.iter().take(4).any(|byte| *byte == 0);
        if is_marked || matches!(bytes.first(), Some(0xfe | 0xff)) {
            return Ok(None);
        }
        let text = std::str::from_utf8(bytes).map_err(|why| {
            Error::new(Kind::Corrupt, "the field is no JSON: it is no UTF-8").caused_by(why)
        })?;
        let mut parser = Parser { text, at: 0 };
        let parsed = parser.value(0).and_then(|value| {
            parser.space();
            if parser.at == text.len() {
                Ok(value)
            } else {
                Err(Stop::Damaged("something follows the document"))
            }
        });
        match parsed {
            Ok(json) => Ok(Some(json)),
            Err(Stop::DeferToPython) => Ok(None),
            Err(Stop::Damaged(why)) => {
                Err(Error::new(Kind::Corrupt, format!("the field is no JSON: {why}")).with("at", parser.at))
            }
        }
    }

    /// About what it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let own = size_of::<Self>();
        match self {
            Self::Text(text) => own + text.len(),
            Self::List(elements) => own + elements.iter().map(Self::memory_bytes).sum::<usize>(),
            Self::Object(members) => {
                let member =
                    |(name, value): &(String, Self)| size_of::<String>() + name.len() + value.memory_bytes();
                own + members.iter().map(member).sum::<usize>()
            }
            _ => own,
        }
    }
}

/// Why a document is not read to its end.
enum Stop {
    /// Python knows what it means.
    DeferToPython,
    /// Nobody does.
    Damaged(&'static str),
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Goes on if this stands here.
    fn has(&mut self, word: &str) -> bool {
        let has = self.text.as_bytes()[self.at..].starts_with(word.as_bytes());
        if has {
            self.at += word.len();
        }
        has
    }

    fn value(&mut self, depth: usize) -> std::result::Result<Json, Stop> {
        self.space();
        match self.peek() {
            Some(b'"') => self.string().map(Json::Text),
            Some(b'[' | b'{') if depth == DEPTH_MAX => Err(Stop::Damaged("it is nested too deeply")),
            Some(b'[') => self.list(depth),
            Some(b'{') => self.object(depth),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ if self.has("true") => Ok(Json::Bool(true)),
            _ if self.has("false") => Ok(Json::Bool(false)),
            _ if self.has("null") => Ok(Json::Null),
            _ if self.has("NaN") || self.has("Infinity") => Err(Stop::DeferToPython),
            Some(_) => Err(Stop::Damaged("no value begins like this")),
            None => Err(Stop::Damaged("it ends too early")),
        }
    }

    fn list(&mut self, depth: usize) -> std::result::Result<Json, Stop> {
        let mut elements = Vec::new();
        self.at += 1;
        self.space();
        if self.has("]") {
            return Ok(Json::List(elements));
        }
        loop {
            elements.push(self.value(depth + 1)?);
            self.space();
            if self.has("]") {
                return Ok(Json::List(elements));
            }
            if !self.has(",") {
                return Err(Stop::Damaged("a list goes on with , or ends with ]"));
            }
        }
    }

    fn object(&mut self, depth: usize) -> std::result::Result<Json, Stop> {
        let mut members = Vec::new();
        self.at += 1;
        self.space();
        if self.has("}") {
            return Ok(Json::Object(members));
        }
        loop {
            self.space();
            if self.peek() != Some(b'"') {
                return Err(Stop::Damaged("a member of an object begins with its name"));
            }
            let name = self.string()?;
            self.space();
            if !self.has(":") {
                return Err(Stop::Damaged("after the name of a member comes :"));
            }
            members.push((name, self.value(depth + 1)?));
            self.space();
            if self.has("}") {
                return Ok(Json::Object(members));
            }
            if !self.has(",") {
                return Err(Stop::Damaged("an object goes on with , or ends with }"));
            }
        }
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        self.at - start
    }

    fn number(&mut self) -> std::result::Result<Json, Stop> {
        let start = self.at;
        if self.has("-") && self.has("Infinity") {
            return Err(Stop::DeferToPython);
        }
        let leads_with_zero = self.peek() == Some(b'0');
        let digits = self.digits();
        if digits == 0 || (leads_with_zero && digits > 1) {
            return Err(Stop::Damaged("a number is cut off or begins with 0"));
        }
        let mut is_whole = true;
        if self.has(".") {
            is_whole = false;
            if self.digits() == 0 {
                return Err(Stop::Damaged("a number ends with its point"));
            }
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            is_whole = false;
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if self.digits() == 0 {
                return Err(Stop::Damaged("a number ends with its exponent"));
            }
        }
        let text = &self.text[start..self.at];
        if !is_whole {
            let number = text.parse().map_err(|_| Stop::Damaged("a number cannot be read"));
            return number.map(Json::Float);
        }
        // `-0` is a whole number in Python, too.
        let number = text.parse().map(Json::Int);
        let number = number.or_else(|_| text.parse().map(Json::Uint));
        number.map_err(|_| Stop::DeferToPython)
    }

    fn string(&mut self) -> std::result::Result<String, Stop> {
        self.at += 1;
        let mut found = String::new();
        loop {
            let start = self.at;
            while !matches!(self.peek(), None | Some(b'"' | b'\\' | 0..=0x1f)) {
                self.at += 1;
            }
            // Both ends are at bytes of ASCII or at the end, so the cut is between characters.
            found.push_str(&self.text[start..self.at]);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(found);
                }
                Some(b'\\') => {
                    self.at += 1;
                    found.push(self.escape()?);
                }
                Some(_) => return Err(Stop::Damaged("a text has a control character in it")),
                None => return Err(Stop::Damaged("a text does not end")),
            }
        }
    }

    fn escape(&mut self) -> std::result::Result<char, Stop> {
        let letter = self.peek();
        self.at += usize::from(letter.is_some());
        Ok(match letter {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                let first = self.hex()?;
                if !(0xd800..0xe000).contains(&first) {
                    return char::from_u32(first).ok_or(Stop::DeferToPython);
                }
                let is_pair = first < 0xdc00 && self.has("\\u");
                let second = if is_pair { self.hex()? } else { 0 };
                if !(0xdc00..0xe000).contains(&second) {
                    return Err(Stop::DeferToPython);
                }
                let code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                return char::from_u32(code).ok_or(Stop::DeferToPython);
            }
            _ => return Err(Stop::Damaged("no escape begins like this")),
        })
    }

    fn hex(&mut self) -> std::result::Result<u32, Stop> {
        let digits = self.text.get(self.at..self.at + 4);
        let digits = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        self.at += 4 * usize::from(code.is_some());
        code.ok_or(Stop::Damaged("\\u needs four digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_keep_their_order_and_their_numbers() {
        let json = Json::parse(
            br#" {"b": [1, -2.5, 18446744073709551615, 1E2], "a": null, "t": "x\u00e9\ud83d\ude00\n", "f" :false} "#,
        );
        let expected = Json::Object(vec![
            (
                "b".into(),
                Json::List(vec![
                    Json::Int(1),
                    Json::Float(-2.5),
                    Json::Uint(u64::MAX),
                    Json::Float(100.0),
                ]),
            ),
            ("a".into(), Json::Null),
            ("t".into(), Json::Text("xé😀\n".into())),
            ("f".into(), Json::Bool(false)),
        ]);
        assert_eq!(json.unwrap(), Some(expected));
    }

    #[test]
    fn numbers_are_exact_to_the_last_bit() {
        for text in [
            "0.1",
            "2.2250738585072011e-308",
            "9007199254740993.0",
            "1e-7",
            "123456789.123456789",
        ] {
            let Some(Json::Float(number)) = Json::parse(text.as_bytes()).unwrap() else {
                unreachable!("a number")
            };
            assert_eq!(number.to_bits(), text.parse::<f64>().unwrap().to_bits());
        }
    }

    #[test]
    fn what_only_python_reads_is_left_to_it() {
        for text in [
            "[123456789012345678901234567890]",
            "{\"x\": NaN}",
            "[-Infinity]",
            "\"\\ud800\"",
            "\u{feff}1",
        ] {
            assert_eq!(Json::parse(text.as_bytes()).unwrap(), None, "{text}");
        }
    }

    #[test]
    fn what_is_damaged_or_nested_without_end_is_refused() {
        let deep = "[".repeat(100_000);
        let texts = [
            "{",
            "",
            "[1,]",
            "{\"a\"}",
            "{\"a\":1,}",
            "01",
            "1.",
            "1e",
            "-",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\n\"",
            "\"",
            "truth",
            "1 2",
            "[1 2]",
            "nul\u{e9}",
            "\"\\u00\u{e9}0\"",
        ];
        for text in texts.into_iter().chain([deep.as_str()]) {
            assert_eq!(
                Json::parse(text.as_bytes()).unwrap_err().kind(),
                Kind::Corrupt,
                "{text:.20}"
            );
        }
        assert_eq!(Json::parse(b"\"\xe9\"").unwrap_err().kind(), Kind::Corrupt);
    }
}
