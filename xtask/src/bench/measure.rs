//! Comparing fairly on a noisy machine: A-B-B-A rounds, medians and quartiles, ratios within a round.

use anyhow::Result;

/// Median and quartiles of some figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spread {
    pub(super) low: f64,
    pub(super) median: f64,
    pub(super) high: f64,
}

impl Spread {
    /// Of any number of figures, at least one.
    pub(super) fn of(figures: &[f64]) -> Self {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = share * (sorted.len().saturating_sub(1)) as f64;
            let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        Self {
            low: at(0.25),
            median: at(0.5),
            high: at(0.75),
        }
    }

    /// `1.02 (0.98 – 1.10)`.
    pub(super) fn shown(&self, decimals: usize) -> String {
        format!(
            "{:.decimals$} ({:.decimals$} – {:.decimals$})",
            self.median, self.low, self.high
        )
    }
}

/// Result of one run of one contender: the figure to compare, and CPU time of its processes per unit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    pub(super) rate: f64,
    pub(super) cpu_micros: f64,
}

/// All samples, one list for each contender, in the order of the rounds.
pub(super) struct Rounds {
    samples: Vec<Vec<Sample>>,
}

impl Rounds {
    /// Runs `contenders` things `rounds` times forth and back.
    pub(super) fn run(
        contenders: usize,
        rounds: usize,
        mut once: impl FnMut(usize) -> Result<Sample>,
    ) -> Result<Self> {
        let mut samples = vec![Vec::new(); contenders];
        for _ in 0..rounds {
            for contender in (0..contenders).chain((0..contenders).rev()) {
                samples[contender].push(once(contender)?);
            }
        }
        Ok(Self { samples })
    }

    /// Returns how a contender does against another, round by round: forth and back of a round are averaged
    /// first.
    pub(super) fn ratio(&self, contender: usize, limit: usize) -> Spread {
        let pairs = |of: usize| {
            self.samples[of]
                .chunks(2)
                .map(|both| both.iter().map(|one| one.rate).sum::<f64>())
        };
        let ratios: Vec<f64> = pairs(contender)
            .zip(pairs(limit))
            .map(|(mine, theirs)| mine / theirs)
            .collect();
        Spread::of(&ratios)
    }

    /// The rate of a contender.
    pub(super) fn rate(&self, contender: usize) -> Spread {
        Spread::of(
            &self.samples[contender]
                .iter()
                .map(|one| one.rate)
                .collect::<Vec<_>>(),
        )
    }

    /// CPU time of a contender per unit.
    pub(super) fn cpu_micros(&self, contender: usize) -> Spread {
        Spread::of(
            &self.samples[contender]
                .iter()
                .map(|one| one.cpu_micros)
                .collect::<Vec<_>>(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_lie_between_figures() {
        assert_eq!(
            Spread::of(&[4.0, 1.0, 2.0, 3.0]),
            Spread {
                low: 1.75,
                median: 2.5,
                high: 3.25
            }
        );
        assert_eq!(
            Spread::of(&[7.0]),
            Spread {
                low: 7.0,
                median: 7.0,
                high: 7.0
            }
        );
    }

    #[test]
    fn contenders_alternate_forth_and_back() {
        let mut order = Vec::new();
        let rounds = Rounds::run(2, 2, |contender| {
            order.push(contender);
            Ok(Sample {
                rate: if contender == 0 { 3.0 } else { 2.0 },
                cpu_micros: 0.0,
            })
        })
        .unwrap();
        assert_eq!(order, [0, 1, 1, 0, 0, 1, 1, 0]);
        assert_eq!(rounds.ratio(0, 1).median, 1.5);
    }
}
