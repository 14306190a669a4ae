//! Carriage returns in the XML answers of `s3s`.
//!
//! A parser makes a line feed of every carriage return that stands in a document as it is, so that a client
//! would see another key than there is. `s3s` writes them as they are, and only in text; here each becomes
//! `&#13;`, which parsers keep. No other character in text is normalised.

use bytes::Bytes;
use http::Response;
use http::header::CONTENT_LENGTH;
use s3s::Body;

/// Makes character references of carriage returns in a document of `s3s`; other bodies stay as they are.
pub(crate) fn keep_carriage_returns(response: &mut Response<Body>) {
    let Some(document) = response.body().bytes() else {
        return;
    };
    if !document.starts_with(b"<?xml") || !document.contains(&b'\r') {
        return;
    }
    let mut kept = Vec::with_capacity(document.len() + 64);
    for part in document.split_inclusive(|byte| *byte == b'\r') {
        match part.split_last() {
            Some((b'\r', text)) => {
                kept.extend_from_slice(text);
                kept.extend_from_slice(b"&#13;");
            }
            _ => kept.extend_from_slice(part),
        }
    }
    response.headers_mut().remove(CONTENT_LENGTH);
    *response.body_mut() = Body::from(Bytes::from(kept));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(document: &str) -> String {
        let mut response = Response::new(Body::from(document.to_owned()));
        keep_carriage_returns(&mut response);
        String::from_utf8(response.body().bytes().unwrap().to_vec()).unwrap()
    }

    #[test]
    fn carriage_returns_become_references_and_nothing_else_changes() {
        assert_eq!(
            kept("<?xml?><Key>a\rb\r\n\r</Key>"),
            "<?xml?><Key>a&#13;b&#13;\n&#13;</Key>"
        );
        assert_eq!(kept("<?xml?><Key>a\tb\n</Key>"), "<?xml?><Key>a\tb\n</Key>");
        assert_eq!(kept("no document\r"), "no document\r");
    }
}
