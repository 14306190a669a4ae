//! Licence expressions: does an allow-list satisfy `MIT OR Apache-2.0 WITH LLVM-exception`?
//!
//! The part of SPDX that crates use: identifiers, `WITH`, `AND`, `OR`, brackets, and the old `/` for `OR`.
//! `AND` binds tighter than `OR`. What cannot be parsed satisfies nothing.

/// Returns whether the expression can be met with the allowed licences alone.
pub(super) fn satisfied(expression: &str, allowed: &dyn Fn(&str) -> bool) -> bool {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser {
        words: &words,
        at: 0,
        allowed,
    };
    match parser.any_of() {
        Some(met) => met && parser.at == words.len(),
        None => false,
    }
}

struct Parser<'a> {
    words: &'a [&'a str],
    at: usize,
    allowed: &'a dyn Fn(&str) -> bool,
}

impl Parser<'_> {
    fn take(&mut self, word: &str) -> bool {
        let found = self.words.get(self.at) == Some(&word);
        self.at += usize::from(found);
        found
    }

    fn any_of(&mut self) -> Option<bool> {
        let mut met = self.all_of()?;
        while self.take("OR") {
            met |= self.all_of()?;
        }
        Some(met)
    }

    fn all_of(&mut self) -> Option<bool> {
        let mut met = self.one()?;
        while self.take("AND") {
            met &= self.one()?;
        }
        Some(met)
    }

    fn one(&mut self) -> Option<bool> {
        if self.take("(") {
            let met = self.any_of()?;
            return self.take(")").then_some(met);
        }
        let name = *self.words.get(self.at)?;
        if matches!(name, "AND" | "OR" | "WITH" | ")") {
            return None;
        }
        self.at += 1;
        if !self.take("WITH") {
            return Some((self.allowed)(name));
        }
        let exception = *self.words.get(self.at)?;
        self.at += 1;
        Some((self.allowed)(&format!("{name} WITH {exception}")))
    }
}

#[cfg(test)]
mod tests {
    use super::satisfied;

    fn mit_and_isc(name: &str) -> bool {
        matches!(name, "MIT" | "ISC")
    }

    #[test]
    fn one_allowed_alternative_is_enough() {
        assert!(satisfied("GPL-3.0 OR MIT", &mit_and_isc));
        assert!(satisfied("Apache-2.0 / MIT", &mit_and_isc));
        assert!(!satisfied("GPL-3.0", &mit_and_isc));
    }

    #[test]
    fn every_part_of_an_and_must_be_allowed() {
        assert!(satisfied("MIT AND (Apache-2.0 OR ISC)", &mit_and_isc));
        assert!(!satisfied("MIT AND Apache-2.0", &mit_and_isc));
        assert!(!satisfied("GPL-3.0 OR MIT AND Apache-2.0", &mit_and_isc));
    }

    #[test]
    fn an_exception_is_a_licence_of_its_own() {
        assert!(!satisfied("MIT WITH LLVM-exception", &mit_and_isc));
        assert!(satisfied("MIT WITH LLVM-exception", &|name| name
            == "MIT WITH LLVM-exception"));
    }

    #[test]
    fn nonsense_satisfies_nothing() {
        for text in ["", "OR MIT", "MIT OR", "(MIT", "MIT MIT", "MIT WITH"] {
            assert!(!satisfied(text, &mit_and_isc), "{text}");
        }
    }
}
