"""Two runs -> a training probe each -> timing -> measurement -> a verdict per limit of memory and time."""
