//! End of a command: exit code 1 for a failure, 2 for wrong usage or configuration.

use forebay_core::{Error, Kind};

/// Result of a command.
pub(crate) type Outcome<T = ()> = Result<T, Exit>;

/// A command that did not work.
#[derive(Debug)]
pub(crate) struct Exit {
    /// True if the caller typed or configured something wrong.
    pub(crate) is_usage: bool,
    pub(crate) error: anyhow::Error,
}

impl Exit {
    /// The work failed.
    pub(crate) fn failure(error: impl Into<anyhow::Error>) -> Self {
        Self {
            is_usage: false,
            error: error.into(),
        }
    }

    /// Arguments or configuration are wrong.
    pub(crate) fn usage(error: impl Into<anyhow::Error>) -> Self {
        Self {
            is_usage: true,
            error: error.into(),
        }
    }

    pub(crate) fn code(&self) -> u8 {
        if self.is_usage { 2 } else { 1 }
    }

    /// The whole story in one line, from what happened to what caused it, nothing said twice.
    pub(crate) fn line(&self) -> String {
        let mut line = String::new();
        for cause in self.error.chain() {
            let text = cause
                .to_string()
                .lines()
                .map(str::trim)
                .collect::<Vec<_>>()
                .join(" ");
            if line.contains(&text) {
                continue;
            }
            if !line.is_empty() {
                line.push_str(": ");
            }
            line.push_str(&text);
        }
        line
    }
}

impl From<Error> for Exit {
    fn from(error: Error) -> Self {
        if error.kind() == Kind::InvalidInput {
            Self::usage(error)
        } else {
            Self::failure(error)
        }
    }
}

impl From<anyhow::Error> for Exit {
    fn from(error: anyhow::Error) -> Self {
        Self::failure(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once_and_in_one_line() {
        let inner = std::io::Error::other("no\nroute");
        let exit = Exit::from(Error::new(Kind::Unavailable, "lake down").caused_by(inner));
        assert_eq!(exit.line(), "lake down: no route");
        let exit = Exit::from(Error::new(Kind::InvalidInput, "bad thing").caused_by("bad thing"));
        assert_eq!(exit.line(), "bad thing");
        assert!(exit.is_usage);
    }
}
