//! The committed pictures are those that the program draws, and can be read.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::Path;

use queen_drawings::{FOLDER, all};

#[test]
fn the_committed_pictures_are_those_that_are_drawn() {
    let names: Vec<&str> = all().iter().map(|(name, _)| *name).collect();
    for (name, picture) in all() {
        let committed = fs::read_to_string(Path::new(FOLDER).join(name)).unwrap_or_default();
        let hint = "run `cargo run --package queen-drawings` and look at the picture";
        assert!(committed == picture.svg, "{name} is not what is drawn: {hint}");
    }
    for file in fs::read_dir(FOLDER).unwrap() {
        let file = file.unwrap().file_name();
        assert!(names.iter().any(|name| file == *name), "no function draws {file:?}");
    }
}

#[test]
fn no_text_lies_over_another_or_leaves_the_page() {
    for (name, picture) in all() {
        for (place, (text, at)) in picture.texts.iter().enumerate() {
            assert!(picture.page.holds(*at), "{name}: \"{text}\" leaves the page: {at:?}");
            for (other, elsewhere) in &picture.texts[place + 1..] {
                assert!(!at.meets(*elsewhere), "{name}: \"{text}\" lies over \"{other}\"");
            }
        }
    }
}
