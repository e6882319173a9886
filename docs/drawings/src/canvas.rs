//! A page to draw on: boxes, lines and arrows, and text that stays clear of other text.

use svg::Document;
use svg::node::element::{
    Definitions, Description, Group, Line, Marker, Path, Rectangle, Text, Title,
};

/// The smallest size of a letter. A page is shown at most a tenth smaller than it is drawn.
pub const SMALL: f64 = 14.0;
pub const LARGE: f64 = 16.0;

pub const INK: &str = "#1b2430";
pub const FAINT: &str = "#5a6675";
pub const RED: &str = "#a3262a";
pub const GREEN: &str = "#1d6b3a";
pub const BLUE: &str = "#1f4e8c";
/// The page has a background of its own, so that it reads the same on a light and a dark page.
const PAPER: &str = "#fcfbf7";

/// How a box is filled and framed.
#[derive(Clone, Copy)]
pub struct Look {
    pub fill: &'static str,
    pub frame: &'static str,
    pub is_dashed: bool,
}

const fn look(fill: &'static str, frame: &'static str) -> Look {
    Look { fill, frame, is_dashed: false }
}

pub const PLAIN: Look = look("#ffffff", "#8a94a3");
pub const QUIET: Look = look("#f1efe8", "#c9c4b6");
pub const BLUISH: Look = look("#e3edfa", "#4472b0");
pub const GREENISH: Look = look("#e2f2e6", "#3b8a58");
pub const REDDISH: Look = look("#fae6e4", "#b8504c");
pub const YELLOWISH: Look = look("#fbf2d5", "#b08a24");
/// What is not there for all to see.
pub const UNSEEN: Look = Look { fill: "#ffffff", frame: "#b8504c", is_dashed: true };

/// A rectangle: the left upper corner, width and height.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    pub x: f64,
    pub y: f64,
    pub w: f64,
    pub h: f64,
}

pub const fn area(x: f64, y: f64, w: f64, h: f64) -> Area {
    Area { x, y, w, h }
}

impl Area {
    pub fn middle(self) -> f64 {
        self.x + self.w / 2.0
    }

    pub fn right(self) -> f64 {
        self.x + self.w
    }

    pub fn bottom(self) -> f64 {
        self.y + self.h
    }

    pub fn meets(self, other: Area) -> bool {
        self.x < other.right()
            && other.x < self.right()
            && self.y < other.bottom()
            && other.y < self.bottom()
    }

    pub fn holds(self, other: Area) -> bool {
        self.x <= other.x
            && self.y <= other.y
            && other.right() <= self.right()
            && other.bottom() <= self.bottom()
    }
}

/// How text is written.
#[derive(Clone, Copy)]
pub struct Style {
    pub size: f64,
    pub is_bold: bool,
    pub is_code: bool,
    pub colour: &'static str,
    pub anchor: Anchor,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// Left-aligned small text.
pub const BODY: Style =
    Style { size: SMALL, is_bold: false, is_code: false, colour: INK, anchor: Anchor::Start };

impl Style {
    pub const fn bold(self) -> Self {
        Self { is_bold: true, ..self }
    }

    pub const fn code(self) -> Self {
        Self { is_code: true, ..self }
    }

    pub const fn large(self) -> Self {
        Self { size: LARGE, ..self }
    }

    pub const fn centred(self) -> Self {
        Self { anchor: Anchor::Middle, ..self }
    }

    pub const fn ended(self) -> Self {
        Self { anchor: Anchor::End, ..self }
    }

    pub const fn in_colour(self, colour: &'static str) -> Self {
        Self { colour, ..self }
    }

    /// About how wide a text is, rather too wide: fonts differ.
    fn width(self, text: &str) -> f64 {
        let letter = match (self.is_code, self.is_bold) {
            (true, _) => 0.603,
            (false, true) => 0.62,
            (false, false) => 0.56,
        };
        text.chars().count() as f64 * letter * self.size
    }
}

/// A page that is being drawn.
pub struct Canvas {
    page: Area,
    document: Document,
    texts: Vec<(String, Area)>,
}

/// A page that has been drawn.
pub struct Picture {
    pub svg: String,
    pub page: Area,
    /// Each text, with the place that it takes.
    pub texts: Vec<(String, Area)>,
}

impl Canvas {
    /// `description` is for those who hear the page instead of seeing it.
    pub fn new(width: f64, height: f64, title: &str, description: &str) -> Self {
        let page = area(0.0, 0.0, width, height);
        let paper = Rectangle::new()
            .set("x", 0)
            .set("y", 0)
            .set("width", width)
            .set("height", height)
            .set("rx", 10)
            .set("fill", PAPER);
        let document = Document::new()
            .set("viewBox", (0, 0, width, height))
            .set("width", width)
            .set("height", height)
            .set("role", "img")
            .set("font-family", "'DejaVu Sans', Verdana, Arial, sans-serif")
            .add(Title::new(title))
            .add(Description::new().add(svg::node::Text::new(description)))
            .add(heads())
            .add(paper);
        Self { page, document, texts: Vec::new() }
    }

    pub fn finish(self) -> Picture {
        let svg = format!("{}\n", self.document);
        Picture { svg, page: self.page, texts: self.texts }
    }

    fn add(&mut self, node: impl svg::Node) {
        let document = std::mem::replace(&mut self.document, Document::new());
        self.document = document.add(node);
    }

    pub fn frame(&mut self, at: Area, look: Look) {
        let mut rectangle = Rectangle::new()
            .set("x", at.x)
            .set("y", at.y)
            .set("width", at.w)
            .set("height", at.h)
            .set("rx", 6)
            .set("fill", look.fill)
            .set("stroke", look.frame)
            .set("stroke-width", 1.5);
        if look.is_dashed {
            rectangle = rectangle.set("stroke-dasharray", "6 4");
        }
        self.add(rectangle);
    }

    /// Write a line of text on the base line `y`.
    pub fn text(&mut self, x: f64, y: f64, style: Style, content: &str) {
        let width = style.width(content);
        let left = match style.anchor {
            Anchor::Start => x,
            Anchor::Middle => x - width / 2.0,
            Anchor::End => x - width,
        };
        let place = area(left, y - 0.8 * style.size, width, style.size);
        self.texts.push((content.to_owned(), place));
        self.add(written(x, y, style, content));
    }

    /// Lines of text below each other, the first on the base line `y`.
    pub fn lines(&mut self, x: f64, y: f64, style: Style, lines: &[&str]) {
        for (line, place) in lines.iter().zip(0..) {
            self.text(x, y + f64::from(place) * 1.36 * style.size, style, line);
        }
    }

    /// Text that rises to the right, from a point on. Its place is not noted.
    pub fn rising(&mut self, x: f64, y: f64, style: Style, content: &str) {
        let group = Group::new().set("transform", format!("translate({x} {y}) rotate(-40)"));
        self.add(group.add(written(0.0, 0.0, style, content)));
    }

    /// A box with a heading, and lines below it, in the middle.
    pub fn panel(&mut self, at: Area, look: Look, heading: &str, lines: &[&str]) {
        self.frame(at, look);
        let below = lines.len() as f64 * 1.36 * SMALL;
        let first = at.y + (at.h - below) / 2.0 + 0.36 * LARGE;
        self.text(at.middle(), first, BODY.large().bold().centred(), heading);
        self.lines(at.middle(), first + 1.5 * SMALL, BODY.centred(), lines);
    }

    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &'static str, dashes: &str) {
        let mut line = Line::new()
            .set("x1", from.0)
            .set("y1", from.1)
            .set("x2", to.0)
            .set("y2", to.1)
            .set("stroke", colour)
            .set("stroke-width", 1.5);
        if !dashes.is_empty() {
            line = line.set("stroke-dasharray", dashes);
        }
        self.add(line);
    }

    /// An arrow along points.
    pub fn arrow(&mut self, points: &[(f64, f64)], colour: &'static str) {
        let mut way = String::new();
        for ((x, y), place) in points.iter().zip(0..) {
            way += &format!("{}{x} {y}", if place == 0 { "M" } else { " L" });
        }
        let path = Path::new()
            .set("d", way)
            .set("fill", "none")
            .set("stroke", colour)
            .set("stroke-width", 1.8)
            .set("marker-end", format!("url(#head-{})", colour.trim_start_matches('#')));
        self.add(path);
    }
}

fn written(x: f64, y: f64, style: Style, content: &str) -> Text {
    let mut text = Text::new(content)
        .set("x", x)
        .set("y", y)
        .set("font-size", style.size)
        .set("fill", style.colour);
    if style.is_bold {
        text = text.set("font-weight", "bold");
    }
    if style.is_code {
        text = text.set("font-family", "'DejaVu Sans Mono', Menlo, Consolas, monospace");
    }
    match style.anchor {
        Anchor::Start => text,
        Anchor::Middle => text.set("text-anchor", "middle"),
        Anchor::End => text.set("text-anchor", "end"),
    }
}

/// Heads of arrows, one for each colour.
fn heads() -> Definitions {
    let mut definitions = Definitions::new();
    for colour in [INK, FAINT, RED, GREEN, BLUE] {
        let head = Path::new().set("d", "M0 0 L9 4 L0 8 Z").set("fill", colour);
        let marker = Marker::new()
            .set("id", format!("head-{}", colour.trim_start_matches('#')))
            .set("viewBox", (0, 0, 9, 8))
            .set("refX", 8)
            .set("refY", 4)
            .set("markerWidth", 7)
            .set("markerHeight", 7)
            .set("orient", "auto")
            .add(head);
        definitions = definitions.add(marker);
    }
    definitions
}
