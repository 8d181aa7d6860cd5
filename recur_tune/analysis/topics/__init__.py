"""Whether continuations stay on topic (the paper's section 5.3.1): prompts -> continuations -> topics -> comparison."""
