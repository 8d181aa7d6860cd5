"""What every room uses and what needs no torch: errors, units, parsing, files, the Hub, shapes of bodies, windowing."""
