"""Commands: parse the options, call one function, print its result. Heavy modules are imported when a command runs."""
