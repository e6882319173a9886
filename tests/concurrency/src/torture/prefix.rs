//! Finds large values among the first of many.

use super::history::Stamp;

/// A segment tree of maxima. It finds the large values among the first n without visiting all of
/// them.
pub struct Prefix {
    leaves: usize,
    maxima: Vec<Stamp>,
}

impl Prefix {
    pub fn of(values: Vec<Stamp>) -> Self {
        let leaves = values.len().next_power_of_two();
        let mut maxima = vec![0; 2 * leaves];
        maxima[leaves..leaves + values.len()].copy_from_slice(&values);
        for node in (1..leaves).rev() {
            maxima[node] = maxima[2 * node].max(maxima[2 * node + 1]);
        }
        Self { leaves, maxima }
    }

    /// Visit each index below `until` whose value is at least `bound`.
    pub fn at_least(&self, bound: Stamp, until: usize, mut visit: impl FnMut(usize)) {
        let mut stack = vec![(1, 0, self.leaves)];
        while let Some((node, from, width)) = stack.pop() {
            if from >= until || self.maxima[node] < bound {
                continue;
            }
            if width == 1 {
                visit(from);
                continue;
            }
            let half = width / 2;
            stack.push((2 * node + 1, from + half, half));
            stack.push((2 * node, from, half));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_finds_what_a_scan_finds() {
        let values: Vec<Stamp> = (0..37).map(|n| (n * 7919) % 101).collect();
        let prefix = Prefix::of(values.clone());
        for until in 0..=values.len() {
            for bound in [0, 1, 50, 99, 100, 101] {
                let mut found = Vec::new();
                prefix.at_least(bound, until, |index| found.push(index));
                let expected: Vec<usize> = (0..until).filter(|n| values[*n] >= bound).collect();
                assert_eq!(found, expected);
            }
        }
    }
}
