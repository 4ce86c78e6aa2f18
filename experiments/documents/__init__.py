"""What each answer says: the document of every report, which renderers print, draw and page."""
