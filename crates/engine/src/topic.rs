//! Which queues get what is published on a topic.
//!
//! A topic is words with dots between them. A *binding* is a pattern and a queue: the queue gets
//! what is published on the topics that the pattern matches. In a pattern, the word `*` stands for
//! any one word, and the word `#` for any number of words, also for none. So it is in AMQP.
//!
//! A word may be empty: `a..b` has three. A `*` or `#` that is part of a longer word, or is in a
//! topic, stands for itself.

use std::collections::{BTreeSet, HashMap};

/// Bindings, as a tree of the words of their patterns. What a topic costs does not depend on how
/// many bindings there are, but on how many of their beginnings match its words.
#[derive(Clone, Debug, Default)]
pub struct Bindings {
    queues: Vec<String>,
    /// The first is the root, where no word has been read.
    nodes: Vec<Node>,
    /// Bytes of the texts in it.
    text: usize,
}

/// Where a pattern is after some of its words.
#[derive(Clone, Debug, Default)]
struct Node {
    words: HashMap<String, usize>,
    any_word: Option<usize>,
    any_words: Option<usize>,
    /// The node stands behind a `#`, so that any further word leads to it again.
    stays: bool,
    /// The places of queues whose patterns end here.
    queues: Vec<usize>,
}

impl Bindings {
    /// From pairs of a pattern and a queue.
    pub fn new(bindings: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut all = Self { nodes: vec![Node::default()], ..Self::default() };
        let mut places: HashMap<String, usize> = HashMap::new();
        for (pattern, queue) in bindings {
            let queue = *places.entry(queue).or_insert_with_key(|queue| {
                all.text += queue.len();
                all.queues.push(queue.clone());
                all.queues.len() - 1
            });
            let end = pattern.split('.').fold(0, |node, word| all.node_behind(node, word));
            all.nodes[end].queues.push(queue);
        }
        all
    }

    /// The node behind this one and a word of a pattern, which is made if it is not there.
    fn node_behind(&mut self, node: usize, word: &str) -> usize {
        let new = self.nodes.len();
        let here = &mut self.nodes[node];
        let next = match word {
            "*" => *here.any_word.get_or_insert(new),
            "#" => *here.any_words.get_or_insert(new),
            _ => match here.words.get(word) {
                Some(known) => *known,
                None => {
                    self.text += word.len();
                    here.words.insert(word.to_owned(), new);
                    new
                }
            },
        };
        if next == new {
            self.nodes.push(Node { stays: word == "#", ..Node::default() });
        }
        next
    }

    /// The queues that get what is published on this topic: in ascending order, each once.
    pub fn queues_of(&self, topic: &str) -> Vec<&str> {
        let mut at = BTreeSet::new();
        if !self.nodes.is_empty() {
            self.arrive(0, &mut at);
        }
        for word in topic.split('.') {
            let mut next = BTreeSet::new();
            for node in at {
                let here = &self.nodes[node];
                if here.stays {
                    next.insert(node);
                }
                for behind in here.words.get(word).into_iter().chain(&here.any_word) {
                    self.arrive(*behind, &mut next);
                }
            }
            at = next;
        }
        let places = at.iter().flat_map(|node| &self.nodes[*node].queues);
        let queues: BTreeSet<&str> = places.map(|place| self.queues[*place].as_str()).collect();
        queues.into_iter().collect()
    }

    /// Be at a node, and so also behind each `#` that follows it: that may stand for no word.
    fn arrive(&self, node: usize, at: &mut BTreeSet<usize>) {
        let mut next = Some(node);
        while let Some(node) = next {
            at.insert(node);
            next = self.nodes[node].any_words;
        }
    }

    /// About how many bytes it takes.
    pub fn size(&self) -> usize {
        const NODE: usize = size_of::<Node>() + 2 * size_of::<(String, usize)>();
        self.text + self.nodes.len() * NODE + self.queues.len() * size_of::<String>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As the rule has it, word by word.
    fn matches(pattern: &[&str], topic: &[&str]) -> bool {
        match (pattern.split_first(), topic.split_first()) {
            (None, None) => true,
            (Some((&"#", rest)), None) => matches(rest, &[]),
            (Some((&"#", rest)), Some((_, others))) => {
                matches(rest, topic) || matches(pattern, others)
            }
            (Some((&"*", rest)), Some((_, others))) => matches(rest, others),
            (Some((word, rest)), Some((other, others))) => word == other && matches(rest, others),
            (Some(_), None) | (None, Some(_)) => false,
        }
    }

    fn bound(bindings: &[(&str, &str)]) -> Bindings {
        let owned = |(pattern, queue): &(&str, &str)| (pattern.to_string(), queue.to_string());
        Bindings::new(bindings.iter().map(owned))
    }

    #[test]
    fn patterns_match_as_in_amqp() {
        for (pattern, topic, expected) in [
            ("orders.new", "orders.new", true),
            ("orders.new", "orders.new.eu", false),
            ("orders.*", "orders.new", true),
            ("orders.*", "orders", false),
            ("orders.*", "orders.new.eu", false),
            ("orders.#", "orders", true),
            ("orders.#", "orders.new.eu", true),
            ("#", "anything.at.all", true),
            ("#", "", true),
            ("*", "", true),
            ("#.eu", "eu", true),
            ("#.eu", "orders.new.eu", true),
            ("#.eu", "eu.orders", false),
            ("a.#.z", "a.z", true),
            ("a.#.z", "a.b.c.z", true),
            ("a.#.z", "a.b.c.z.y", false),
            ("#.#", "a", true),
            ("*.#", "a", true),
            ("*.#", "", true),
            ("a.*.b", "a..b", true),
            ("a..b", "a..b", true),
            ("a.b", "a..b", false),
            ("a*", "a*", true),
            ("a*", "ab", false),
            ("*", "#", true),
            ("a", "*", false),
            ("Orders", "orders", false),
        ] {
            let queues = bound(&[(pattern, "q")]).queues_of(topic).len();
            assert_eq!(queues == 1, expected, "{pattern} {topic}");
        }
    }

    #[test]
    fn each_queue_is_named_once_in_ascending_order() {
        let bindings = bound(&[("a.#", "z"), ("a.b", "m"), ("#", "z"), ("*.b", "c"), ("x", "y")]);
        assert_eq!(bindings.queues_of("a.b"), ["c", "m", "z"]);
        assert_eq!(bindings.queues_of("q"), ["z"]);
        assert!(Bindings::default().queues_of("a").is_empty());
    }

    #[test]
    fn a_pattern_that_matches_in_very_many_ways_costs_little() {
        let words = vec!["a"; 120];
        let mut patterns: Vec<(String, String)> = Vec::new();
        for length in 1..60 {
            patterns.push((vec!["#.a"; length].join("."), format!("queue {length}")));
            patterns.push((vec!["#.*"; length].join("."), "one".into()));
        }
        assert_eq!(Bindings::new(patterns).queues_of(&words.join(".")).len(), 60);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn bindings_match_as_the_rule_says(
            patterns in prop::collection::vec(("[ab*#.]{1,9}", "[p-r]"), 0..12),
            topic in "[abc.*#]{0,9}",
        ) {
            let words: Vec<&str> = topic.split('.').collect();
            let expected: BTreeSet<&str> = patterns
                .iter()
                .filter(|(pattern, _)| matches(&pattern.split('.').collect::<Vec<_>>(), &words))
                .map(|(_, queue)| queue.as_str())
                .collect();
            let bindings = Bindings::new(patterns.clone());
            prop_assert!(bindings.queues_of(&topic).into_iter().eq(expected));
        }
    }
}
