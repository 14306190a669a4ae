//! Shares of a limit: nobody may hold so much that others find nothing.
//!
//! One rule for whatever is limited at a door: connections, requests, bytes. A holder may take more as long
//! as it then holds at most [`FREE_FACTOR`] times what is left free for all. Alone it gets three quarters;
//! the more others hold, the less it gets; there is always something free for somebody new, who may take his
//! first piece of it. Nothing is taken back: a holder above its share gets no more until it has given
//! something up.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Most that one holder may hold, in multiples of what is free.
const FREE_FACTOR: u64 = 3;

/// Returns whether a holder of `mine`, of `total` that all hold together, may take `cost` more of `max`.
#[must_use]
pub fn share_fits(mine: u64, total: u64, cost: u64, max: u64) -> bool {
    let Some(free) = max.checked_sub(total).and_then(|free| free.checked_sub(cost)) else {
        return false;
    };
    mine == 0 || mine.saturating_add(cost) <= free.saturating_mul(FREE_FACTOR)
}

/// Returns the most that one holder gets of `max`, when it is alone.
#[must_use]
pub fn share_max(max: u64) -> u64 {
    let part = max / (FREE_FACTOR + 1) * FREE_FACTOR;
    if part == 0 { max } else { part }
}

/// Origin of a connection, as far as shares go: an IPv4 address, or the /64 network of an IPv6 one, of
/// which a single host has all addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Origin(Option<IpAddr>);

impl Origin {
    /// The origin of a connection from this address; connections in memory have one of their own.
    #[must_use]
    pub fn of(address: Option<SocketAddr>) -> Self {
        Self(address.map(|address| match address.ip().to_canonical() {
            IpAddr::V4(address) => IpAddr::V4(address),
            IpAddr::V6(address) => {
                let network = u128::from(address) & !u128::from(u64::MAX);
                IpAddr::V6(Ipv6Addr::from(network))
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_holder_gets_three_quarters_and_two_leave_a_seventh() {
        let mut held = 0;
        while share_fits(held, held, 1, 4000) {
            held += 1;
        }
        assert_eq!(held, 3000);
        assert_eq!(share_max(4000), 3000);
        let (mut one, mut two) = (0, 0);
        loop {
            let before = (one, two);
            one += u64::from(share_fits(one, one + two, 1, 7000));
            two += u64::from(share_fits(two, one + two, 1, 7000));
            if before == (one, two) {
                break;
            }
        }
        assert!(one.abs_diff(two) <= 2 && one + two <= 6001, "{one} {two}");
    }

    #[test]
    fn the_smallest_limits_still_let_somebody_in() {
        assert!(share_fits(0, 0, 1, 1));
        assert!(!share_fits(0, 1, 1, 1));
        assert!(!share_fits(1, 1, 1, 2));
        assert_eq!(share_max(3), 3);
    }

    #[test]
    fn addresses_of_one_host_are_one_origin() {
        let origin = |text: &str| Origin::of(Some(text.parse().expect("an address")));
        assert_eq!(origin("[2001:db8::1]:1"), origin("[2001:db8::ffff:2]:9"));
        assert_ne!(origin("[2001:db8::1]:1"), origin("[2001:db8:0:1::1]:1"));
        assert_eq!(origin("10.0.0.1:1"), origin("[::ffff:10.0.0.1]:2"));
        assert_ne!(origin("10.0.0.1:1"), origin("10.0.0.2:1"));
    }

    proptest! {
        /// However many take as much as they get, somebody new gets in while there is room at all.
        #[test]
        fn hogs_never_take_everything(hogs in 1u64..40, max in 1000u64..100_000) {
            let (mut held, mut total) = (vec![0u64; usize::try_from(hogs).unwrap()], 0);
            loop {
                let before = total;
                for mine in &mut held {
                    if share_fits(*mine, total, 1, max) {
                        *mine += 1;
                        total += 1;
                    }
                }
                if total == before {
                    break;
                }
            }
            prop_assert!(share_fits(0, total, 1, max), "{total} of {max}");
        }
    }
}
