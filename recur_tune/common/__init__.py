"""What every package uses, without torch: errors, units, parsing, files, the Hub, shapes of bodies, windowing."""
