"""Two runs -> a training probe each -> measurement -> a verdict per limit of memory and time."""
