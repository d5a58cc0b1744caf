//! Tables, text histograms and SVG plots.
