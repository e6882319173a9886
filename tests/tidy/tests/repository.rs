//! Every rule, applied to the repository.

use std::io;
use std::sync::LazyLock;

use queen_tidy::{
    Findings, Repository, arrows, circles, documents, links, map, names, phrases, promises, sizes,
    sql_text, type_names, unsafe_code,
};

type Verified = Result<(), &'static io::Error>;

static REPOSITORY: LazyLock<io::Result<Repository>> = LazyLock::new(Repository::read);

/// Applies a rule, which has to look at this many files at least.
fn verify(rule: fn(&Repository) -> Findings, at_least: usize) -> Verified {
    rule(REPOSITORY.as_ref()?).verify(at_least);
    Ok(())
}

#[test]
fn the_repository_is_what_the_rules_look_at() -> Verified {
    let repository = REPOSITORY.as_ref()?;
    assert!(repository.has("tests/tidy/tests/repository.rs"));
    assert!(repository.has(".ci/run"));
    assert!(!repository.has("target") && !repository.has(".git"));
    Ok(())
}

#[test]
fn no_room_uses_one_above_it() -> Verified {
    verify(arrows::check, 60)
}

#[test]
fn no_modules_use_each_other_in_a_circle() -> Verified {
    verify(circles::check, 60)
}

#[test]
fn no_two_types_have_one_name() -> Verified {
    verify(type_names::check, 150)
}

#[test]
fn files_functions_and_lines_are_short() -> Verified {
    verify(sizes::check, 150)
}

#[test]
fn prose_names_who_does_what() -> Verified {
    verify(phrases::check, 200)
}

#[test]
fn named_documents_exist() -> Verified {
    verify(documents::check, 200)
}

#[test]
fn links_lead_somewhere() -> Verified {
    verify(links::check, 15)
}

#[test]
fn the_map_has_one_line_for_each_file() -> Verified {
    verify(map::check, 120)
}

#[test]
fn sql_stands_in_the_store_alone() -> Verified {
    verify(sql_text::check, 30)
}

#[test]
fn unsafe_stands_where_postgresql_is_called() -> Verified {
    verify(unsafe_code::check, 100)
}

#[test]
fn names_use_the_words_of_the_field() -> Verified {
    verify(names::check, 60)
}

#[test]
fn promises_name_tests_that_are_there() -> Verified {
    verify(promises::check, 30)
}
